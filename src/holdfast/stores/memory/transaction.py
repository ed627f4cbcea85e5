"""A transaction of the memory store: its changes are kept together, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from holdfast.errors import CarrierError, DatabaseError, DuplicateJobError
from holdfast.stores.memory.state import Listener, State

if TYPE_CHECKING:
    from holdfast.models import Job, JobId

_CONFLICT = "40001"


class InMemoryTransaction:
    """Use it as `with` or `async with`, and give it to `.on()`. Leaving the block commits; an
    exception rolls back. `tx.transaction()` is a savepoint."""

    def __init__(self, parent: State) -> None:
        self._parent = parent
        self._before = dict(parent.rows)
        self._logged = len(parent.log)
        self._canceled: list[JobId] = []
        self.state = parent.fork(Listener(lambda: None, self._canceled.append))
        self.open = True

    def transaction(self) -> InMemoryTransaction:
        """A savepoint: rolled back alone, or kept as a part of this transaction."""
        self.check_open()
        return InMemoryTransaction(self.state)

    def belongs_to(self, state: State) -> bool:
        return self._parent.origin is state

    def check_open(self) -> None:
        if not self.open:
            raise CarrierError("the in-memory transaction is over; begin another one")

    async def commit(self) -> None:
        self._commit()

    async def rollback(self) -> None:
        self.open = False

    def _commit(self) -> None:
        self.check_open()
        self.open = False
        changed = {
            job_id: self.state.rows.get(job_id)
            for job_id in self._before.keys() | self.state.rows.keys()
            if self.state.rows.get(job_id) is not self._before.get(job_id)
        }
        self._check_conflicts(changed)
        self._parent.take_over(changed, self.state.log[self._logged :])
        self._parent.take_results(self.state)
        self._parent.announce_cancel(self._canceled)

    def _check_conflicts(self, changed: dict[JobId, Job | None]) -> None:
        for job_id, after in changed.items():
            if self._parent.rows.get(job_id) is not self._before.get(job_id):
                raise DatabaseError(
                    f"job {job_id} was changed outside the transaction meanwhile; repeat it",
                    sqlstate=_CONFLICT,
                )
            key = after.dedupe_key if after is not None and after.held_at is None else None
            owner = self._parent.keys.get(key)
            if key is not None and owner not in (None, job_id) and owner not in changed:
                raise DuplicateJobError(key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self.open and kind is None:
            self._commit()
        self.open = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        self.__exit__(kind, error, traceback)
