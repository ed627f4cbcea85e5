"""Bugs of recovery on a user's table that has no column for deaths."""

from __future__ import annotations

from chaos.mutants.base import mutant, patch
from holdfast.lifecycle import Transition, Verb
from holdfast.stores.postgres.tables.render import TableWords


@mutant("row-recovery-charges-attempt", "user table deaths")
def row_recovery_charges_attempt() -> None:
    """The recovery of a table row counts an attempt."""
    original = TableWords.sets

    def sets(self: TableWords, transition: Transition) -> str:
        text = original(self, transition)
        return f"{text}, attempts = j.attempts + 1" if transition.verb is Verb.RECOVER else text

    patch(TableWords, "sets", sets)


@mutant("row-neighbours-retired", "user table poison")
def row_neighbours_retired() -> None:
    """Rows that ran beside a deadly row are retired with it."""

    def convicted(self: TableWords) -> str:
        return f"({self.suspect}) is true"

    patch(TableWords, "convicted", property(convicted))


@mutant("row-death-not-counted", "user table poison")
def row_death_not_counted() -> None:
    """A row that kills its worker is recovered without end."""
    patch(TableWords, "convicted", property(lambda _: "false"))
