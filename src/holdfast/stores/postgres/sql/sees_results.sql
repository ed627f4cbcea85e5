-- role: reader
-- Whether the user of the connection may read results.
select coalesce(has_table_privilege(to_regclass(:table::text), 'select'), false)
