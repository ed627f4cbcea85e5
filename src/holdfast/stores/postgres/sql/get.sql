-- role: reader
-- Jobs in the queue table by id. Index: primary key.
select {seen} from {table} j where j.id = any(:ids::bigint[]) order by j.id
