-- sees_results($1 table)
select coalesce(has_table_privilege(to_regclass($1::text), 'select'), false)
