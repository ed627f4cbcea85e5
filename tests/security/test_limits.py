"""Limits of the client that the database does not have: a producer may pass them with plain SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import Holdfast, Job
from holdfast.stores.postgres.grants import DatabaseRole

if TYPE_CHECKING:
    from tests.security.roles import Roles

BEYOND = {
    "payload": "insert into holdfast (entrypoint, payload) values"
    " ('mail', decode(repeat('ab', 2 * 1024 * 1024), 'hex'))",
    "headers": "insert into holdfast (entrypoint, headers) values"
    " ('mail', jsonb_build_object('x', repeat('y', 100000)))",
    "depth": "insert into holdfast (entrypoint, headers) values"
    " ('mail', (repeat('[', 5000) || repeat(']', 5000))::jsonb)",
    "year": "insert into holdfast (entrypoint, execute_after) values ('mail', '4000-01-01 BC')",
    "far": "insert into holdfast (entrypoint, execute_after) values ('mail', '20255-01-01')",
    "name": "insert into holdfast (entrypoint) values (repeat('n', 300))",
}


async def test_rows_beyond_the_limits_of_the_client_do_not_stop_a_worker(roles18: Roles) -> None:
    with roles18.connection(DatabaseRole.PRODUCER) as producer:
        for statement in BEYOND.values():
            producer.execute(statement.encode())
    ran: list[Job] = []
    async with Holdfast.connect(roles18.dsn(DatabaseRole.WORKER)) as hf:

        @hf.entrypoint("mail")
        async def mail(job: Job) -> None:
            ran.append(job)

        await hf.queries.enqueue("mail", b"good")
        await hf.run(mode="drain")
    sizes = sorted(len(job.payload or b"") for job in ran)
    assert sizes == [0, 0, len(b"good"), 2 * 1024 * 1024]
    with roles18.owner() as owner:
        left = owner.execute("select entrypoint, status::text from holdfast order by id").fetchall()
    # The headers that Python cannot read are held; the far future and an unknown name wait.
    assert left == [("mail", "failed"), ("mail", "queued"), ("n" * 300, "queued")]
