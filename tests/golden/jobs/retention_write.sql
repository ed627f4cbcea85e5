-- retention_write($1 succeeded, $2 others)
update "holdfast_retention" set succeeded = $1::interval, others = $2::interval
returning succeeded, others
