-- What tasks returned, for those that store it. Written in the statement that ends the lease.
-- compatible: yes

create table {results} (
    job_id      bigint primary key,
    -- JSON; null where it could not be stored, and then `error` says why.
    value       text,
    error       text,
    created     timestamptz not null,
    expires_at  timestamptz not null
);

create index {prefix}_results_expiry on {results} (expires_at);
