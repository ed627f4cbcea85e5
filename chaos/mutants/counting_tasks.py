"""Bugs of what a handler's run leaves beside the outcome: its transaction, result and progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.mutants.base import mutant, patch, rewrite, unguard
from holdfast.worker.handler_transaction import HandlerTransaction

if TYPE_CHECKING:
    from holdfast.models import Outcome


@mutant("commit-without-token", "late commit")
def commit_without_token() -> None:
    """The commit of a handler's transaction names the job, and not the token."""
    unguard("complete")


@mutant("commit-unasked", "late commit after the end")
def commit_unasked() -> None:
    """A handler's transaction is committed though its job could not be ended."""
    original = HandlerTransaction._end

    async def end(self: HandlerTransaction, outcome: Outcome) -> bool:
        await original(self, outcome)
        return True

    patch(HandlerTransaction, "_end", end)


@mutant("result-without-token", "late result")
def result_without_token() -> None:
    """A result is stored whether or not the job was ended with it."""
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
    """Progress is noted by the job's id alone, if it is leased."""
    rewrite("note_progress", "and {guards}", "and j.status = 'picked'")
