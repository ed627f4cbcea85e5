-- Whether the user of the connection may see what jobs carry.
select has_column_privilege('{table}', 'payload', 'select')
   and has_column_privilege('{table}', 'headers', 'select')
