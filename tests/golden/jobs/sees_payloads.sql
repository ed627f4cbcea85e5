-- sees_payloads()
select has_column_privilege('"holdfast"', 'payload', 'select')
   and has_column_privilege('"holdfast"', 'headers', 'select')
