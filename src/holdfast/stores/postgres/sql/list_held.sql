-- The newest held jobs. Index: held.
select {columns} from {table} j
where j.held_at is not null
order by j.created desc, j.id desc
limit :limit::integer
