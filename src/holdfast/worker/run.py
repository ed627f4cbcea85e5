"""One lease -> one Outcome. Whatever a handler does, this returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.clock import monotonic
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
from holdfast.retry import outcome_of
from holdfast.worker.gate import judge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.worker.hand import Lease

_SUCCEEDED = Succeeded()
_STOPPED: Mapping[str, Outcome] = {
    LEASE_LOST: Abandoned(LEASE_LOST),
    CANCELED: Abandoned(CANCELED),
    SHUTDOWN: Released(SHUTDOWN),
    UNTRUSTED: Released(UNTRUSTED),
    NOT_STARTED: Released(NOT_STARTED),
}


async def run(resources: Mapping[Any, Any], lease: Lease) -> Outcome:
    """Run the handler of a lease, unless it was stopped before or is too old to be trusted."""
    if lease.cancellation.reason is not None:
        return _STOPPED[lease.cancellation.reason]
    began = monotonic()
    if began >= lease.trusted_until:
        return _STOPPED[UNTRUSTED]
    lease.began = began
    context = Context(lease.job, resources, lease.cancellation)
    try:
        await lease.entrypoint.executor.execute(lease.job, context)
    except BaseException as error:  # SystemExit and the like must not end the worker
        return _outcome(lease, error)
    finally:
        lease.seconds_run = monotonic() - began
    lease.verdict = True
    return _SUCCEEDED


def _outcome(lease: Lease, error: BaseException) -> Outcome:
    """A handler that was told to stop has not failed, whatever it raised on the way out."""
    reason = lease.cancellation.reason
    stopped = _STOPPED.get(reason) if reason else None
    if stopped is not None:
        return stopped
    if lease.permit is not None:
        lease.verdict = judge(error, lease.permit.policy)
    return outcome_of(error, lease.job, lease.entrypoint)
