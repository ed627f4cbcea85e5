-- role: operator
-- Locks jobs in the order of their ids, before a statement of the same transaction changes them.
-- The next statement then sees each row as it was locked. Without this a row that changed after the
-- statement began is checked against the constraints in its old version. Index: primary key.
select j.id from {table} j where j.id = any(:ids::bigint[]) order by j.id for update of j
