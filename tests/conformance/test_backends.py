"""A backend that is used again is like a new one."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from holdfast import Retention
from tests.conformance.backends import DATABASES, Backends
from tests.conformance.stores import SECOND

if TYPE_CHECKING:
    from tests.conformance.stores import QueueUnderTest
    from tests.servers import SharedServers


@pytest.mark.parametrize("queue", DATABASES, indirect=True)
async def test_what_a_test_leaves_is_gone_for_the_next(
    queue: QueueUnderTest, backends: Backends, pg_servers: SharedServers
) -> None:
    await queue.ended()
    await queue.queries.set_retention(Retention(SECOND, None))
    async with AsyncExitStack() as stack:
        new = await Backends(pg_servers, stack).emptied(queue.name)
        expected = await new.rows()

    emptied = await backends.emptied(queue.name)

    assert await emptied.rows() == expected
    assert await queue.queries.retention() == Retention()
