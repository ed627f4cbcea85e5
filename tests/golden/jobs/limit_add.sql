-- limit_add($1 entrypoint)
insert into "holdfast_limits" (entrypoint) values ($1::text) on conflict do nothing
