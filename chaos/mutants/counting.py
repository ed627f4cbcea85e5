"""Bugs of counters: what is counted, what is not, and who is charged for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.mutants.base import entries, mutant, patch, rewrite
from holdfast.lifecycle import Effect, Guard, Transition, Verb
from holdfast.stores.postgres import render
from holdfast.worker import claim_size
from holdfast.worker.quarantine import Quarantine

if TYPE_CHECKING:
    from holdfast.stores.postgres.binding import Binding


@mutant("crash-not-counted", "poison")
def crash_not_counted() -> None:
    """A job whose worker died goes back to the queue as if nothing had happened."""
    entries(render.EFFECTS)[Effect.COUNT_RECOVERY] = "recoveries = j.recoveries"


@mutant("recovery-charges-attempt", "killed")
def recovery_charges_attempt() -> None:
    """A dead worker costs its jobs an attempt."""
    both = "recoveries = j.recoveries + 1, attempts = j.attempts + 1"
    entries(render.EFFECTS)[Effect.COUNT_RECOVERY] = both


@mutant("retry-not-counted", "retries")
def retry_not_counted() -> None:
    """A retry leaves attempts alone."""
    entries(render.EFFECTS)[Effect.COUNT_ATTEMPT] = "attempts = j.attempts"


@mutant("release-charges-attempt", "handed back")
def release_charges_attempt() -> None:
    """A job that is handed back unfinished is charged with an attempt."""
    original = render.sets

    def sets(transition: Transition, binding: Binding) -> str:
        text = original(transition, binding)
        released = transition.verb is Verb.RELEASE
        return f"{text}, attempts = j.attempts + 1" if released else text

    patch(render, "sets", sets)


@mutant("neighbour-convicted", "poison")
def neighbour_convicted() -> None:
    """Suspects run beside each other, so those beside a deadly one are retired with it."""
    entries(render.GUARDS)[Guard.RECOVERY_LEFT] = "true"
    entries(render.GUARDS)[Guard.RECOVERY_SPENT] = "false"


@mutant("quarantine-without-bound", "quarantine")
def quarantine_without_bound() -> None:
    """Every worker stands aside for suspects while there are any."""
    patch(Quarantine, "_next_suspect", property(lambda self: self._suspect_at))


@mutant("retry-delay-ignored", "retries")
def retry_delay_ignored() -> None:
    """A retry is due at once."""
    entries(render.EFFECTS)[Effect.DELAY] = "execute_after = clock.now"


@mutant("outage-counted-as-death", "long outage")
def outage_counted_as_death() -> None:
    """Whatever was not renewed while the server was away is charged to the jobs."""
    rewrite("recover", "{since} as since", "null::timestamptz as since")


@mutant("claim-not-shrunk", "slow link")
def claim_not_shrunk() -> None:
    """A claim whose reply does not arrive in time is repeated as it was."""

    def same(*_: object) -> None:
        return

    patch(claim_size.ClaimSize, "timed_out", same)
