-- role: reader
-- The positions in these lists of the privileges that a role lacks, by grant or by membership.
-- Reads no table of Holdfast's.
select w.place
from unnest(:tables::text[], :columns::text[], :privileges::text[])
     with ordinality as w(name, part, privilege, place)
where not case
    when w.part = '' then has_table_privilege(:role::text, w.name, w.privilege)
    else has_column_privilege(:role::text, w.name, w.part, w.privilege)
end
