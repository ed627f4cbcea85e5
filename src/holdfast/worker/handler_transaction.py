"""A handler's own transaction: its writes and the end of its job are one commit.

The commit names the token of the lease. If the lease is over, everything is rolled back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.clock import monotonic
from holdfast.errors import ConnectionLost, DatabaseError, InvalidInput, LeaseLost
from holdfast.lifecycle import RETIRE_LAST_RETRY, TRANSITIONS, Transition, Verb
from holdfast.models import (
    LEASE_LOST,
    Abandoned,
    Change,
    Outcome,
    Released,
    Retried,
    StoredResult,
    Succeeded,
)
from holdfast.retry import outcome_of, requested

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from holdfast.models import Context
    from holdfast.ports import JobTransaction
    from holdfast.worker.leases import Lease
    from holdfast.worker.sources import Sources

_COMPLETE, _RETRY = TRANSITIONS[Verb.COMPLETE], TRANSITIONS[Verb.RETRY]
_UNKNOWN = Released("the outcome of the handler's commit is unknown")


def begin(
    sources: Sources, lease: Lease, context: Context, target: object, *, keep_on_retry: bool
) -> HandlerTransaction:
    """Begin the transaction of a run, of which there is at most one."""
    if context.ended:
        raise InvalidInput(f"ctx.transaction() of job {lease.job.id}: the run has ended")
    if context.transaction_begun:
        raise InvalidInput(
            f"ctx.transaction() of job {lease.job.id} was called before in this run, and a job "
            "ends once; put everything into one block"
        )
    context.transaction_begun = True
    work = sources.leases[lease.source].begin(target)
    return HandlerTransaction(lease, context, work, keep_on_retry=keep_on_retry)


class HandlerTransaction:
    """The transactions of `ctx.transaction()`."""

    def __init__(
        self, lease: Lease, context: Context, work: JobTransaction, *, keep_on_retry: bool
    ) -> None:
        self._lease = lease
        self._context = context
        self._work = work
        self._keep_on_retry = keep_on_retry

    async def __aenter__(self) -> Any:
        if self._work.synchronous is True:
            raise InvalidInput(
                "this transaction blocks the event loop; pass an AsyncEngine or an "
                "async_sessionmaker, or write `with ctx.transaction(…)` in a plain `def` handler"
            )
        return await self._work.open()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        outcome = self._outcome(error)
        if outcome is not None:
            await self._undisturbed(self._write(outcome))
        elif error is not None:
            await self._undisturbed(self._work.rollback())
        else:
            self._context.uncommitted = self

    def __enter__(self) -> Any:
        if self._work.synchronous is False:
            raise InvalidInput(
                "this transaction needs `async with`; in a plain `def` handler pass an Engine or "
                "a sessionmaker of SQLAlchemy"
            )
        return _run(self._work.open())

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        outcome = self._outcome(error)
        if outcome is not None:
            _run(self._write(outcome))
        elif error is not None:
            _run(self._work.rollback())
        else:
            self._context.uncommitted = self

    async def commit(self, result: StoredResult | None) -> None:
        """Commit with the result that the handler returned."""
        await self._undisturbed(self._write(Succeeded(result)))

    def commit_sync(self, result: StoredResult | None) -> None:
        _run(self._write(Succeeded(result)))

    async def discard(self) -> None:
        """Roll back: the handler has raised behind its block."""
        await self._undisturbed(self._work.rollback())

    def _outcome(self, error: BaseException | None) -> Outcome | None:
        """The outcome that is committed when the block is left. None means none, or not yet."""
        if error is None:
            return None if self._context.stores_result else Succeeded()
        if self._keep_on_retry and requested(error):
            return outcome_of(error, self._lease.job, self._lease.entrypoint)
        return None

    async def _undisturbed(self, work: Coroutine[Any, Any, None]) -> None:
        """Await a commit to its end, also when the handler is cancelled meanwhile: an outcome that
        nobody waited for would be unknown."""
        task, cancelled = asyncio.ensure_future(work), False
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                cancelled = True
        task.result()
        if cancelled:
            raise asyncio.CancelledError

    async def _write(self, outcome: Outcome) -> None:
        # From here on the lease is not stopped any more. The row itself decides who owns it.
        self._lease.settle_by = monotonic() + self._lease.seconds
        try:
            ended = await self._end(outcome)
            if ended:
                await self._work.commit()
            else:
                await self._work.rollback()
        except BaseException as error:
            self._lease.settle_by = None
            if isinstance(error, ConnectionLost):
                # Committed or not: the release is fenced, and a run that is undone may be repeated.
                self._context.settled = _UNKNOWN
            await self._work.rollback()
            raise
        if not ended:
            self._lease.settle_by = None
            self._context.settled = Abandoned(LEASE_LOST)
            raise LeaseLost(self._lease.job.id)
        self._lease.committed = True
        self._context.settled = outcome

    async def _end(self, outcome: Outcome) -> bool:
        """End the job in the transaction. Return False when the lease is over."""
        key = self._lease.key
        if not isinstance(outcome, Retried):
            assert isinstance(outcome, Succeeded)  # noqa: S101 - nothing else is committed
            return await self._change(_COMPLETE, Change(key, result=outcome.result))
        cap = self._lease.entrypoint.max_attempts
        change = Change(key, outcome.delay, outcome.error, outcome.reason, outcome.traceback, cap)
        if await self._change(_RETRY, change):
            return True
        self._lease.retired = await self._change(RETIRE_LAST_RETRY, change)
        return self._lease.retired

    async def _change(self, transition: Transition, change: Change) -> bool:
        while True:
            try:
                return bool(await self._work.change(transition, [change]))
            except DatabaseError as error:
                # A renewal has locked the row for a moment. The server has waited for it already.
                if not error.locked or not self._lease.trusted:
                    raise


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits, in a thread without an event loop."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    raise InvalidInput("this transaction needs `async with`")
