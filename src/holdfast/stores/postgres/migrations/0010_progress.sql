-- How far running jobs are, as their handlers last said.
-- compatible: yes

create table {progress} (
    job_id      bigint primary key,
    fraction    real not null,
    message     text,
    updated     timestamptz not null
) with (fillfactor = 50);
