"""Bugs of counters: what is counted, what is not, and who is charged for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.mutants.base import entries, mutant, patch
from holdfast.lifecycle import Effect, Transition, Verb
from holdfast.stores.postgres import render
from holdfast.worker import solo

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


@mutant("siblings-charged", "poison")
def siblings_charged() -> None:
    """Jobs that were beside a deadly one are retired with it."""

    def never(*_: object) -> bool:
        return False

    patch(solo, "on_last_chance", never)


@mutant("retry-delay-ignored", "retries")
def retry_delay_ignored() -> None:
    """A retry is due at once."""
    entries(render.EFFECTS)[Effect.DELAY] = "execute_after = clock.now"
