-- role: worker
-- Creates the row that claims under a limit lock, once for each entrypoint. Index: primary key.
insert into {limits} (entrypoint) values (:entrypoint::text) on conflict do nothing
