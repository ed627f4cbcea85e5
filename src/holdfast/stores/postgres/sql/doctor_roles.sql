-- role: reader
-- The roles that were granted privileges on these tables, other than their owners.
-- Reads no table of Holdfast's.
select distinct r.rolname::text
from pg_class c
cross join lateral (
    select a.grantee from aclexplode(c.relacl) a
    union all
    select a.grantee from pg_attribute t cross join lateral aclexplode(t.attacl) a
    where t.attrelid = c.oid and t.attacl is not null
) g
join pg_roles r on r.oid = g.grantee
where c.oid = any(:tables::text[]::regclass[]) and not r.rolsuper and r.oid <> c.relowner
order by 1
limit 100
