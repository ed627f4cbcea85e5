-- role: reader
-- Whether the user of the connection may see what jobs returned.
select coalesce(has_table_privilege(to_regclass(:table::text), 'select'), false)
