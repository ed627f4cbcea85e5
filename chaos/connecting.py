"""How a process of the harness reaches the server: as users do, or as a pooler needs it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from holdfast import Holdfast
from holdfast.stores.postgres.drivers import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def opened(dsn: str, timeout: float, *, pooled: bool) -> AsyncIterator[Holdfast]:
    """Through a pooler in transaction mode nothing may be prepared under a name."""
    if not pooled:
        async with Holdfast.connect(dsn, timeout=timeout) as hf:
            yield hf
        return
    hf = Holdfast(connect(dsn, timeout=timeout, statement_cache_size=0))
    try:
        yield hf
    finally:
        await hf.store.close()
