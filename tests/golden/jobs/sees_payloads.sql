-- sees_payloads($1 table)
select has_column_privilege($1::text, 'payload', 'select')
   and has_column_privilege($1::text, 'headers', 'select')
