"""Bugs of what a handler writes beside its outcome: its transaction, result and progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.mutants.base import mutant, patch, rewrite, unguard
from holdfast.worker.handler_transaction import HandlerTransaction

if TYPE_CHECKING:
    from holdfast.models import Outcome


@mutant("commit-without-token", "late commit")
def commit_without_token() -> None:
    """The commit of a handler's transaction checks the job's id, not the token."""
    unguard("complete")


@mutant("commit-after-refused-outcome", "late commit after the end")
def commit_after_refused_outcome() -> None:
    """A handler's transaction is committed although its outcome was refused."""
    original = HandlerTransaction._end

    async def end(self: HandlerTransaction, outcome: Outcome) -> bool:
        await original(self, outcome)
        return True

    patch(HandlerTransaction, "_end", end)


@mutant("result-without-token", "late result")
def result_without_token() -> None:
    """A result is stored even if its outcome was refused."""
    rewrite(
        "finish_with_result",
        "    select g.id, (:results::text[])[g.n], (:result_errors::text[])[g.n], clock.now,\n"
        "           clock.now + (:keeps::interval[])[g.n]\n"
        "    from gone g, clock\n",
        "    select g.id, (:results::text[])[g.n], (:result_errors::text[])[g.n], clock.now,\n"
        "           clock.now + (:keeps::interval[])[g.n]\n"
        "    from unnest({ids}) with ordinality as g(id, n), clock\n",
    )


@mutant("progress-without-token", "late progress")
def progress_without_token() -> None:
    """Progress is written by the job's id alone, if the job is leased."""
    rewrite("note_progress", "and {guards}", "and j.status = 'picked'")
