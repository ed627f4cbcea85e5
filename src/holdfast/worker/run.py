"""Runs the handler of one lease and returns an Outcome, whatever the handler does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.clock import monotonic
from holdfast.errors import DatabaseError, HoldfastError
from holdfast.models import (
    CANCELED,
    LEASE_LOST,
    NOT_STARTED,
    SHUTDOWN,
    UNTRUSTED,
    Abandoned,
    Context,
    Outcome,
    Released,
    Succeeded,
)
from holdfast.retry import message_of, outcome_of
from holdfast.worker.breaker_gate import judge
from holdfast.worker.handler_transaction import HandlerTransaction, begin
from holdfast.worker.job_log import log_after_commit

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from holdfast.worker.leases import Lease
    from holdfast.worker.payloads import PayloadFetcher
    from holdfast.worker.progress import ProgressWriter
    from holdfast.worker.sources import Sources

_SUCCEEDED = Succeeded()
_STOPPED: Mapping[str, Outcome] = {
    LEASE_LOST: Abandoned(LEASE_LOST),
    CANCELED: Abandoned(CANCELED),
    SHUTDOWN: Released(SHUTDOWN),
    UNTRUSTED: Released(UNTRUSTED),
    NOT_STARTED: Released(NOT_STARTED),
}


class Services:
    """Takes the progress of handlers, and begins their transactions."""

    def __init__(self, sources: Sources, progress: ProgressWriter) -> None:
        self._sources = sources
        self.note = progress.note

    def begin(self, context: Context, target: object, *, keep_on_retry: bool) -> HandlerTransaction:
        """Begin the transaction of a run. It ends the job in the table that the job is from."""
        return begin(self._sources, context.lease, context, target, keep_on_retry=keep_on_retry)


async def run(resources: MutableMapping[Any, Any], lease: Lease, services: Services) -> Outcome:
    """Run the handler of a lease, unless it was stopped before or is too old to be trusted."""
    # Note the start before reading the reason: see worker/rescue.py.
    began = lease.began = monotonic()
    if lease.cancellation.reason is not None:
        return _STOPPED[lease.cancellation.reason]
    if began >= lease.trusted_until:
        return _STOPPED[UNTRUSTED]
    context = Context(lease.job, resources, lease.cancellation, services, lease)
    try:
        await lease.entrypoint.executor.execute(lease.job, context)
    except BaseException as error:  # SystemExit and the like must not end the worker
        if context.uncommitted is not None and context.settled is None:
            await context.uncommitted.discard()
        elif lease.committed and not isinstance(error, asyncio.CancelledError):
            log_after_commit(lease.job, error, monotonic() - began)
        return context.settled or _outcome(lease, error)
    finally:
        context.ended = True
        lease.seconds_run = monotonic() - began
    if context.settled is not None:
        lease.verdict = True if lease.committed else None
        return context.settled
    if lease.cancellation.cancelled_caught and (stopped := _stopped(lease)):
        return stopped
    lease.verdict = True
    return _SUCCEEDED if context.result is None else Succeeded(context.result)


async def fetch_payload(lease: Lease, payloads: PayloadFetcher) -> Outcome | None:
    """Complete a job whose payload is large. Return the outcome if it cannot run."""
    lease.began = monotonic()
    if lease.cancellation.reason is not None:
        return _STOPPED[lease.cancellation.reason]
    if not lease.trusted:
        return _STOPPED[UNTRUSTED]
    try:
        owned = await payloads.fetch(lease)
    except (asyncio.CancelledError, DatabaseError) as error:
        return _outcome(lease, error)
    return None if owned else _STOPPED[LEASE_LOST]


def _stopped(lease: Lease) -> Outcome | None:
    reason = lease.cancellation.reason
    return _STOPPED.get(reason) if reason else None


def _outcome(lease: Lease, error: BaseException) -> Outcome:
    """A handler that was asked to stop has not failed, whatever it raised on its way out."""
    if stopped := _stopped(lease):
        return stopped
    try:
        if lease.permit is not None:
            lease.verdict = judge(error, lease.permit.policy)
        return outcome_of(error, lease.job, lease.entrypoint)
    except BaseException as fault:  # of the handler's own class: the job would run again for ever
        unreadable = HoldfastError(
            f"the handler raised an exception that cannot be read ({message_of(fault)}); look for "
            "properties that raise, and for groups in groups without end"
        )
        return outcome_of(unreadable, lease.job, lease.entrypoint)
