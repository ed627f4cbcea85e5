-- A lease counts only while the row is picked. A person may set a picked row to queued without
-- clearing the columns of its lease; the next claim overwrites them. Every statement of a worker
-- names the state beside its token. A trigger that clears the columns would cost each renewal a
-- second write, even where it does not fire. Rows of before are stricter, so none is looked at.
alter table {table}
    drop constraint {prefix}_leased_while_picked,
    add constraint {prefix}_leased_while_picked check (
        status <> 'picked'
        or num_nonnulls(claim_token, claimed_by, claimed_at, heartbeat, lease) = 5
    ) not valid;

-- What a worker was told as heartbeat_timeout; null from a version that does not report it.
alter table {workers} add column heartbeat_timeout interval;
