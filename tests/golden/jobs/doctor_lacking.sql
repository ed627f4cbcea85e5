-- doctor_lacking($1 tables, $2 columns, $3 privileges, $4 role)
select w.place
from unnest($1::text[], $2::text[], $3::text[])
     with ordinality as w(name, part, privilege, place)
where not case
    when w.part = '' then has_table_privilege($4::text, w.name, w.privilege)
    else has_column_privilege($4::text, w.name, w.part, w.privilege)
end
