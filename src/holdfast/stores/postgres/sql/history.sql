-- role: reader
-- A job's log, oldest first. Index: primary key of the log.
select {log_columns} from {log} l where l.job_id = :job_id::bigint order by l.id
