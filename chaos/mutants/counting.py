"""Bugs of counters: what is counted, what is not, and for which job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.mutants.base import entries, mutant, patch, rewrite
from holdfast.lifecycle import Effect, Guard, Transition, Verb
from holdfast.stores.postgres import render
from holdfast.worker import claim_size
from holdfast.worker.quarantine import Quarantine
from holdfast.worker.suspect_turn import SuspectTurn

if TYPE_CHECKING:
    from holdfast.stores.postgres.binding import Binding


@mutant("crash-not-counted", "poison")
def crash_not_counted() -> None:
    """A recovery leaves `recoveries` as it was."""
    entries(render.EFFECTS)[Effect.COUNT_RECOVERY] = "recoveries = j.recoveries"


@mutant("recovery-charges-attempt", "worker killed")
def recovery_charges_attempt() -> None:
    """A recovery counts an attempt as well."""
    both = "recoveries = j.recoveries + 1, attempts = j.attempts + 1"
    entries(render.EFFECTS)[Effect.COUNT_RECOVERY] = both


@mutant("retry-not-counted", "retries")
def retry_not_counted() -> None:
    """A retry leaves `attempts` as it was."""
    entries(render.EFFECTS)[Effect.COUNT_ATTEMPT] = "attempts = j.attempts"


@mutant("release-charges-attempt", "released at stop")
def release_charges_attempt() -> None:
    """A release counts an attempt."""
    original = render.sets

    def sets(transition: Transition, binding: Binding) -> str:
        text = original(transition, binding)
        released = transition.verb is Verb.RELEASE
        return f"{text}, attempts = j.attempts + 1" if released else text

    patch(render, "sets", sets)


@mutant("neighbour-retired", "poison")
def neighbour_retired() -> None:
    """Suspects run beside each other, so a deadly one has its neighbours retired."""
    entries(render.GUARDS)[Guard.RECOVERY_LEFT] = "true"
    entries(render.GUARDS)[Guard.RECOVERY_SPENT] = "false"


@mutant("quarantine-without-bound", "quarantine")
def quarantine_without_bound() -> None:
    """While suspects wait, every worker claims nothing else."""

    async def always(_turn: SuspectTurn, _turns: int) -> bool:
        return True

    # Either of the two keeps the other workers at their work.
    patch(Quarantine, "_next_suspect", property(lambda self: self._suspect_at))
    patch(SuspectTurn, "take", always)


@mutant("retry-delay-ignored", "retries")
def retry_delay_ignored() -> None:
    """A retry is due at once, whatever its delay."""
    entries(render.EFFECTS)[Effect.DELAY] = "execute_after = clock.now"


@mutant("outage-counted-as-death", "long outage")
def outage_counted_as_death() -> None:
    """Leases that expired during an outage count as deaths."""
    rewrite("recover", "{since} as since", "null::timestamptz as since")


@mutant("claim-not-shrunk", "slow link")
def claim_not_shrunk() -> None:
    """A claim that timed out is repeated at the same size."""

    def same(*_: object) -> None:
        return

    patch(claim_size.ClaimSize, "timed_out", same)
