-- wake_recovered($1 channel)
select pg_notify($1::text, 'recovered') where case when $1::text in (select pg_listening_channels()) then true when pg_try_advisory_lock(hashtextextended('listeners of ' || $1::text, 0)) then not pg_advisory_unlock(hashtextextended('listeners of ' || $1::text, 0)) else true end
