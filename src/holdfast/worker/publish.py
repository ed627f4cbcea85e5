"""Ends leases whose outcomes are written, and publishes each outcome once."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from holdfast.events import Lost, Observers, Retired, Settled
from holdfast.lifecycle import RETIRE_LAST_RETRY
from holdfast.models import Held, Outcome, Retried
from holdfast.worker.caps import log_retired
from holdfast.worker.job_log import log_ended

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.worker.leases import LeaseSet
    from holdfast.worker.work_signal import WorkSignal
    from holdfast.worker.write import Ending, Written

logger = logging.getLogger("holdfast.worker")


class Publisher:
    """Drops leases and notifies observers. `signal` learns when a job that was put off is due."""

    def __init__(
        self,
        lease_set: LeaseSet,
        observers: Observers,
        *,
        worker: str,
        signal: WorkSignal | None = None,
    ) -> None:
        self._lease_set = lease_set
        self._observers = observers
        self._worker = worker
        self._signal = signal

    def publish(self, written: Written, *, in_doubt: bool) -> None:
        """Publish outcomes. `in_doubt` means that they may have been written before."""
        if written.moved:
            self._settled(written.moved)
        if written.retired:
            self._retired(written.retired)
        if written.lost or written.refused:
            self._lease_set.drop(lease for lease, _ in written.lost)
            self._lease_set.drop((lease for lease, _ in written.refused), lapse=True)
            for ending in (*written.lost, *written.refused):
                self._lost(ending, in_doubt=in_doubt)

    def _settled(self, endings: Sequence[Ending]) -> None:
        self._lease_set.drop(lease for lease, _ in endings)
        log_ended(self._worker, endings)
        # All of them took one transition, so their outcomes are of one kind.
        if self._signal is not None and isinstance(endings[0][1], Retried):
            for _, outcome in endings:
                assert isinstance(outcome, Retried)  # noqa: S101 - see above
                self._signal.set_in(outcome.delay)
        if self._observers:
            runs = [(lease.job, outcome, lease.seconds_run) for lease, outcome in endings]
            self._observers.notify(Settled(self._worker, runs))

    def _retired(self, endings: Sequence[Ending]) -> None:
        self._lease_set.drop(lease for lease, _ in endings)
        runs = [(lease.job, _held(outcome), lease.seconds_run) for lease, outcome in endings]
        for (lease, _), run in zip(endings, runs, strict=True):
            log_retired(self._worker, lease.entrypoint, *run)
        if self._observers:
            ids = [job.id for job, _, _ in runs]
            queues = Counter(job.entrypoint for job, _, _ in runs)
            reason = RETIRE_LAST_RETRY.reason or ""
            self._observers.notify(Retired(self._worker, ids, reason, queues, runs))

    def _lost(self, ending: Ending, *, in_doubt: bool) -> None:
        lease, outcome = ending
        lease.verdict = None
        if in_doubt:
            logger.info("job %s: outcome written already, or lease lost", lease.job.id)
        else:
            name = type(outcome).__name__.lower()
            logger.info("job %s: lease lost; outcome %s discarded", lease.job.id, name)
        if self._observers:
            self._observers.notify(Lost(self._worker, lease.job, outcome))


def _held(outcome: Outcome) -> Held:
    """Return the outcome of a request for a retry that the cap refused."""
    assert isinstance(outcome, Retried)  # noqa: S101 - nothing else is retired
    return Held(outcome.error, outcome.traceback, RETIRE_LAST_RETRY.reason)
