-- Jobs in the queue table by id. Index: primary key.
select {columns} from {table} j where j.id = any(:ids::bigint[]) order by j.id
