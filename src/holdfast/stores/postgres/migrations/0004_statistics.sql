-- Nobody asks what is in these arrays; to sample them took autovacuum up to a second a minute.
alter table {enqueues} alter column ids set statistics 0, alter column skipped set statistics 0;
alter table {leases} alter column ids set statistics 0;

-- The log is counted in bites of transactions: those before the first row need not be bitten.
update {counted} set tx = coalesce(
    (select min(tx) from {log}), pg_snapshot_xmin(pg_current_snapshot())::text::bigint
)
where tx = 0;
