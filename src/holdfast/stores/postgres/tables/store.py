"""A user's table beside Holdfast's own, through the same driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import InvalidInput
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.postgres.tables.leases import TableLeases

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.clock import Clock
    from holdfast.ports import Store
    from holdfast.table import TableQueue


def leases_on(queue: TableQueue, clock: Clock, warned: set[str]) -> Callable[[Store], TableLeases]:
    """Makes the table's leases for a store, and again for each of its forks."""

    def make(store: Store) -> TableLeases:
        if not isinstance(store, PostgresStore):
            raise InvalidInput(
                f"table queue {queue.queue!r} needs PostgreSQL; the in-memory store has no tables"
            )
        return TableLeases(
            store.driver,
            queue,
            clock,
            warned=warned,
            handlers=store.leases.handlers,
            pauses=store.pause_view(),
        )

    return make
