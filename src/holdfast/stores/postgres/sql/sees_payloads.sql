-- role: worker
-- Whether the user of the connection may read payloads and headers.
select has_column_privilege(:table::text, 'payload', 'select')
   and has_column_privilege(:table::text, 'headers', 'select')
