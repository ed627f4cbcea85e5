"""A queue as people meet it on a bad day: jobs of every state, a past, workers, breakers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg

from holdfast import Holdfast

if TYPE_CHECKING:
    from tests.servers import Database

SQL = """
insert into holdfast_workers (id, host, pid, version, entrypoints, breaker_names, concurrency,
    running, state, started_at, heartbeat, heartbeat_timeout)
select 'app-' || n || ':' || 2390 + n || ':9f2c01aa', 'app-' || n, 2390 + n, '0.1.0',
       array['charge_card', 'sync_inventory', 'webhook_deliver', 'resize_image', 'send_email',
             'rollup_hourly'],
       array['stripe', '', 'search', '', '', ''],
       100, (array[31, 24, 18, 14, 9])[n], 'running', now() - interval '5 h',
       now() - case when n = 4 then interval '21 s' else make_interval(secs => n * 0.4) end,
       case when n = 4 then interval '30 s' else interval '1 h' end
from generate_series(1, 5) n;

insert into holdfast_statistics (bucket, entrypoint, priority, status, count, busy, waited)
select date_bin('1 minute', now(), '2000-01-01Z') - make_interval(mins => m), e, 0, s,
       greatest(0, case s
           when 'successful' then 190 + 40 * sin(m / 7.0) + 12 * sin(m * 1.7)
           when 'queued' then 2 + case when m between 18 and 26 then 30 - 3 * abs(22 - m) else 0 end
           when 'exception' then case when m between 19 and 25 then 8 - 2 * abs(22 - m)
                                      else (m % 7 = 0)::int end
           else case when m between 20 and 24 then 5 - abs(22 - m) else 0 end
       end)::bigint, interval '1 s',
       case when s = 'successful' then array[2, 9, 30, 60, 40, 22, 12, 8, 6, 4, 3, 2, 2, 1, 1]
                || array_fill((m between 20 and 24)::int * 9, array[8]) else '{}' end
from generate_series(0, 90) m,
     unnest(array['charge_card', 'sync_inventory', 'webhook_deliver', 'send_email']) e,
     unnest(array['successful', 'queued', 'exception', 'failed']::holdfast_status[]) s
where s = 'successful' or e = 'charge_card' or (e = 'sync_inventory' and s = 'exception');

insert into holdfast (entrypoint, dedupe_key, payload, headers, created, execute_after)
select e, e || '-' || n, '{"order": 1}', '{"tenant": "acme"}', now() - make_interval(secs => n),
       now() + case when n % 9 = 0 then interval '4 min' else make_interval(secs => -n / 3.0) end
from unnest(array['charge_card', 'webhook_deliver', 'render_invoice_v2']) e,
     generate_series(1, 30) n;
insert into holdfast (entrypoint, payload, created, execute_after)
select 'send_email', '{"to": "x"}', now() - interval '1 s', now() from generate_series(1, 8);

insert into holdfast (entrypoint, dedupe_key, payload, headers, created, status, attempts,
    max_attempts, last_error, last_error_at, held_at, execute_after)
select 'charge_card', 'held-' || n,
    convert_to('{"order": ' || n || ', "amount": {"value": 12950,
    "currency": "EUR"}, "customer": "cus_9fL2", "card_number": "4111111111111111",
    "capture": true}',
    'UTF8'),
    '{"tenant": "acme", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}',
    now() - interval '31 min', 'failed', 4, 4,
    'ReadTimeout: no response from ''api.stripe.com'' in ' || n || ' s', now() - interval '21 min',
    now() - make_interval(mins => 20 + n % 4), now() - interval '25 min'
from generate_series(1, 24) n;
insert into holdfast (entrypoint, payload, created, status, attempts, last_error, last_error_at,
    held_at, execute_after)
select 'sync_inventory', '{"sku": 5}', now() - make_interval(hours => n * 2), 'failed', 3,
    'ConflictError: version ' || n || ' of sku ' || n * 7 || ' is stale', now(),
    now() - make_interval(hours => n * 2 - 1), now() - interval '1 d'
from generate_series(1, 9) n;
insert into holdfast (entrypoint, created, status, recoveries, last_error, last_error_at, held_at,
    execute_after)
select 'resize_image', now() - interval '6 h', 'failed', 3, 'stale claim recovered', now(),
    now() - make_interval(hours => n), now() - interval '7 h'
from generate_series(1, 3) n;

with few as (
    update holdfast set status = 'picked', claim_token = '00000000-0000-0000-0000-000000000001',
        claimed_by = 'app-2:2392:9f2c01aa', claimed_at = now() - interval '6 s', heartbeat = now(),
        lease = interval '30 s', attempts = 1
    where id in (select id from holdfast where entrypoint = 'send_email' limit 5) returning id
)
insert into holdfast_leases (token, worker, claimed_at, lease, ids)
select '00000000-0000-0000-0000-000000000001', 'app-2:2392:9f2c01aa', now(), interval '30 s',
       array_agg(id) from few;

insert into holdfast_breakers (name, state, failures, opened_at, cooldown, updated)
values ('stripe', 'open', 5, now() - interval '8 s', interval '30 s', now()),
       ('search', 'closed', 0, null, interval '0', now());
insert into holdfast_schedules (name, expression, next_run, last_run, paused)
values ('rollup_hourly', '15 * * * *', now() + interval '3 min', now() - interval '57 min', false),
       ('sync_prices', '*/30 * * * *', now() + interval '18 min', null, false),
       ('prune_log', '0 4 * * *', now() + interval '5 h', now() - interval '19 h', true);
"""

_TRACEBACK = {
    "exception_type": "ReadTimeout",
    "exception_message": "no response from 'api.stripe.com' in 14 s",
    "traceback": 'Traceback (most recent call last):\n  File "/app/payments/jobs.py", line 41, in '
    "charge_card\n    receipt = await stripe.capture(order.charge, order.amount)\n"
    '  File "/app/payments/stripe.py", line 118, in capture\n    reply = await self._http.post(url)'
    "\nhttpx.ReadTimeout: no response from 'api.stripe.com' in 14 s\n",
}

_HISTORY = """
insert into holdfast_log (job_id, status, entrypoint, priority, attempt, recoveries, claimed_by,
    claimed_at, reason, traceback, created, enqueued_at, due_at, lease, actor, fingerprint)
select %(job)s, s::holdfast_status, 'charge_card', 0, n, 0, worker, held - claimed, reason,
       case when tb then %(traceback)s::jsonb end, held - ended, held - interval '9 min',
       held - claimed - interval '2 s', interval '30 s', actor,
       case when tb then 'f0c4d1a7b2e9' end
from (select held_at + interval '1 s' as held from holdfast where id = %(job)s) j,
(values
    (1, 'queued', 'app-3:2393:9f2c01aa', interval '6 min 50 s', interval '6 min 36 s', null, true,
     null),
    (2, 'queued', 'app-1:2391:9f2c01aa', interval '6 min 21 s', interval '6 min 7 s', null, true,
     null),
    (3, 'queued', 'app-4:2394:9f2c01aa', interval '5 min 22 s', interval '4 min 38 s',
     'lease_expired', false, null),
    (4, 'queued', 'app-2:2392:9f2c01aa', interval '4 min 37 s', interval '4 min 31 s', 'shutdown',
     false, null),
    (5, 'failed', 'app-1:2391:9f2c01aa', interval '15 s', interval '1 s', 'max_attempts', true,
     null),
    (6, 'failed', null, null, interval '-6 min', 'wrong currency', false, 'cli:mara@ops')
) as l(n, s, worker, claimed, ended, reason, tb, actor)
"""

_HOLDS = """
insert into holdfast_log (job_id, status, entrypoint, priority, attempt, recoveries, claimed_by,
    claimed_at, reason, traceback, created, lease, fingerprint)
select id, status, entrypoint, 0, attempts, recoveries, 'app-1:2391:9f2c01aa',
       held_at - interval '14 s',
       case when recoveries > 0 then 'crash_loop' else 'max_attempts' end,
       case when recoveries = 0 then %(traceback)s::jsonb end, held_at, interval '30 s',
       case when recoveries = 0 then 'f0c4d1a7b2e9' end
from holdfast
where id <> %(job)s and held_at is not null and entrypoint in ('charge_card', 'resize_image')
"""

_FAILURES = """
with failed as (
    select s.bucket + make_interval(secs => 50.0 * n / s.count) as at, s.entrypoint, s.status,
           nextval('holdfast_id_seq') as job_id
    from holdfast_statistics s, generate_series(1, s.count) n
    where s.status in ('exception', 'queued') and s.bucket > now() - interval '1 h'
), written as (
    insert into holdfast_log (job_id, status, entrypoint, priority, attempt, recoveries, claimed_by,
        claimed_at, traceback, created, enqueued_at, due_at, lease, fingerprint)
    select f.job_id, f.status, f.entrypoint, 0, 1, 0,
           'app-' || 1 + f.job_id % 3 || ':2391:9f2c01aa', f.at - interval '2 s',
           jsonb_build_object('exception_type', e.kind, 'exception_message', e.message,
               'traceback', E'Traceback (most recent call last):\\n  File "/app/' || f.entrypoint
               || E'.py", line 27, in run\\n    await send(order)\\n' || e.kind || ': '
               || e.message),
           f.at, f.at - interval '3 s', f.at - interval '3 s', interval '30 s', e.mark
    from failed f, lateral (
        select 'ReadTimeout' as kind, 'no response in ' || f.job_id % 9 + 5 || ' s' as message,
               '7be21c90aa41' as mark where f.status = 'queued'
        union all select 'CardDeclined', 'card of order ' || f.job_id || ' was declined',
               'a90b6e1170c2' where f.status = 'exception' and f.entrypoint = 'charge_card'
        union all select 'ConflictError', 'version ' || f.job_id || ' is stale', '55d0f3c1be78'
               where f.status = 'exception' and f.entrypoint <> 'charge_card'
    ) e
    returning id
)
insert into holdfast_log (job_id, status, entrypoint, priority, attempt, recoveries, claimed_by,
    claimed_at, created, enqueued_at, due_at, lease)
select job_id, 'successful', entrypoint, 0, 2, 0, 'app-2:2392:9f2c01aa', at + interval '4 s',
       at + interval '6 s', at - interval '3 s', at + interval '3 s', interval '30 s'
from failed where status = 'queued' and (select count(*) from written) > 0
"""
"""The failures that the statistics count in the last hour. What was retried succeeded then."""

_COUNTED = "update holdfast_counted set tx = pg_current_xact_id()::text::bigint"

BEAT = """
update holdfast_workers
set heartbeat = now() - case when pid = 2394 then interval '21 s' else interval '1 s' end
"""


def beat(database: Database) -> None:
    """The workers report once more, but for the silent one, so that time does not matter."""
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(BEAT)


async def tell(database: Database) -> int:
    """Install the tables and fill them; the id of a held job with a history."""
    async with Holdfast.connect(database.dsn) as hf:
        await hf.install()
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(SQL.encode())
        found = connection.execute(
            "select id from holdfast where dedupe_key = 'held-14'"
        ).fetchone()
        assert found is not None
        values = {"job": found[0], "traceback": json.dumps(_TRACEBACK)}
        connection.execute(_HISTORY, values)
        connection.execute(_HOLDS, values)
        connection.execute(_FAILURES.encode())
        # The statistics have these rows already.
        connection.execute(_COUNTED)
        return int(found[0])


HOLD = """
insert into holdfast (entrypoint, payload, status, attempts, last_error, last_error_at, held_at)
values (%s, '{"order": 7, "token": "s3cret"}', 'failed', 1, 'ValueError: no', now(), now())
returning id
"""


def hold(database: Database, entrypoint: str) -> int:
    """A new job that is held."""
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        found = connection.execute(HOLD, (entrypoint,)).fetchone()
    assert found is not None
    return int(found[0])
