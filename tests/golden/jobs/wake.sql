-- wake($1 channel, $2 entrypoints)
select pg_notify($1::text, coalesce((
    select 'wake ' || c.id
    from (
        select w.id
        from "holdfast_workers" w
        where w.entrypoints && $2::text[] and case when pg_try_advisory_lock(hashtextextended('listeners of ' || $1::text || ' ' || w.id, 0)) then not pg_advisory_unlock(hashtextextended('listeners of ' || $1::text || ' ' || w.id, 0)) else true end
        order by random()
        limit 1
    ) c
), ''))
where case when $1::text in (select pg_listening_channels()) then true when pg_try_advisory_lock(hashtextextended('listeners of ' || $1::text, 0)) then not pg_advisory_unlock(hashtextextended('listeners of ' || $1::text, 0)) else true end
