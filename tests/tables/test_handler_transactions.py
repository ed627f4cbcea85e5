"""A handler of a table queue ends its row in its own transaction."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - the reader of rows resolves it
from typing import TYPE_CHECKING, Any

from holdfast import Context, Holdfast
from tests.tables.three_tables import SNOOZES
from tests.worker.workers import Watch, ends

if TYPE_CHECKING:
    from tests.servers import Database

ADD = "insert into email_snoozes (user_email, message_id, remind_at) values ('a', $1, now())"


async def test_the_row_ends_with_what_the_handler_wrote(pg18: Database, witness: Any) -> None:
    await witness.execute(SNOOZES.ddl)
    await witness.execute("create table sent (message_id text)")
    for message in ("fails", "works"):
        await witness.execute(ADD, message)
    seen: list[str] = []
    async with Holdfast.connect(pg18.dsn) as hf:
        watch = Watch(hf)

        @hf.table("email_snoozes")
        async def remind(row: Mapping[str, Any], ctx: Context) -> None:
            async with ctx.transaction() as tx:
                await tx.execute("insert into sent values ($1)", row["message_id"])
                seen.append(row["message_id"])
                if row["message_id"] == "fails":
                    raise ValueError

        await ends(hf.run(mode="drain", signals=False))
    assert sorted(seen) == ["fails", "works"]
    sent = await witness.fetch("select message_id from sent")
    assert [row["message_id"] for row in sent] == ["works"]
    assert len(watch.settled) == 2
    assert not watch.lost
