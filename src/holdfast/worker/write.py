"""Writes the outcomes of one transition, and returns the result of each."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, assert_never

from holdfast.errors import ConnectionFailed, ConnectionLost, DatabaseError
from holdfast.lifecycle import RETIRE_LAST_RETRY, TRANSITIONS, Transition, Verb
from holdfast.models import (
    Abandoned,
    Change,
    Failed,
    Held,
    Outcome,
    Released,
    Retried,
    Succeeded,
)
from holdfast.worker.leases import Lease

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from holdfast.ports import Leases

logger = logging.getLogger("holdfast.worker")

_RETRY = TRANSITIONS[Verb.RETRY]
_ASKED_BY: dict[type[Outcome], Transition] = {
    Succeeded: TRANSITIONS[Verb.COMPLETE],
    Retried: _RETRY,
    Failed: TRANSITIONS[Verb.FAIL],
    Held: TRANSITIONS[Verb.HOLD],
    Released: TRANSITIONS[Verb.RELEASE],
}
"""The transition that an outcome asks for. Nothing is written for an abandoned job."""

_PASSING = ("40", "53", "55", "57", "58")
"""SQLSTATE classes of a server that is in trouble: conflicts, resources, locks, stops, disks."""

UNSTORED = "outcome could not be stored"

Ending = tuple[Lease, Outcome]


@dataclass(frozen=True, slots=True)
class Written:
    """The results of some outcomes. Each is in one of these."""

    moved: Sequence[Ending] = ()
    """These took the transition that their outcome asked for."""
    retired: Sequence[Ending] = ()
    """These asked for a retry that their cap did not allow. Their jobs are held."""
    lost: Sequence[Ending] = ()
    """The leases of these were over."""
    locked: Sequence[Ending] = ()
    """Other transactions have locked their rows. Nothing was written."""
    refused: Sequence[Ending] = ()
    """The database refuses these for good."""


async def write(
    table: Leases, kind: type[Outcome], endings: Sequence[Ending]
) -> AsyncIterator[Written]:
    """Write outcomes of one kind to one table. Yield the results of each statement.

    DatabaseError means that the rest may go through later.
    """
    transition = _ASKED_BY.get(kind)
    if transition is None:
        yield Written(lost=endings)
        return
    try:
        yield await _move(table, transition, endings)
    except DatabaseError as error:
        if error.locked:
            locked, free = await _locked(table, endings, error)
            yield Written(locked=locked)
            if free:
                yield await _move(table, transition, free)
        elif _passes(error):
            raise
        else:
            for ending in endings:
                yield await _move_alone(table, transition, ending)


async def _move(
    table: Leases,
    transition: Transition,
    endings: Sequence[Ending],
    changes: Sequence[Change] | None = None,
) -> Written:
    """Write outcomes, with their whole changes by default."""
    if changes is None:
        changes = [_change_of(ending) for ending in endings]
    moved = await table.change(transition, changes)
    if len(moved) == len(changes):
        return Written(endings)
    found = set(moved)
    rest = [change for change in changes if change.key not in found]
    retired = set(await table.change(RETIRE_LAST_RETRY, rest)) if transition is _RETRY else set()
    return Written(
        [ending for ending in endings if ending[0].key in found],
        [ending for ending in endings if ending[0].key in retired],
        [ending for ending in endings if ending[0].key not in found | retired],
    )


async def _locked(
    table: Leases, endings: Sequence[Ending], error: DatabaseError
) -> tuple[list[Ending], list[Ending]]:
    """Divide outcomes into those whose rows are locked and the others."""
    locked = await table.locked([lease.key for lease, _ in endings])
    if not locked:
        # The table is locked, or the row is free by now.
        raise error
    return (
        [ending for ending in endings if ending[0].key in locked],
        [ending for ending in endings if ending[0].key not in locked],
    )


async def _move_alone(table: Leases, transition: Transition, ending: Ending) -> Written:
    """Write one outcome of a batch that was refused. If it is the one at fault, write it
    without its texts and result."""
    try:
        return await _move(table, transition, [ending])
    except DatabaseError as error:
        if _passes(error):
            raise
        logger.error("the outcome of job %s was refused: %s", ending[0].job.id, error)
    change = _change_of(ending)
    bare = change._replace(
        error=UNSTORED,
        reason=UNSTORED,
        traceback=None,
        result=change.result and replace(change.result, value=None, error=UNSTORED),
    )
    try:
        return await _move(table, transition, [ending], [bare])
    except DatabaseError as error:
        if _passes(error):
            raise
        # Renewing the lease would hide the job for ever. Another worker may succeed.
        logger.exception("job %s is left to its lease", ending[0].job.id)
        return Written(refused=[ending])


def committed(ending: Ending) -> Written:
    """Return the outcome that a handler's own transaction has written."""
    return Written(retired=[ending]) if ending[0].retired else Written([ending])


def _change_of(ending: Ending) -> Change:
    """Return the change that an outcome asks for."""
    lease, outcome = ending
    if isinstance(outcome, Succeeded):
        # Nearly every outcome. The match below takes five times as long.
        result = outcome.result
        return Change(lease.key) if result is None else Change(lease.key, result=result)
    match outcome:
        case Retried(delay, error, traceback, reason):
            cap = lease.entrypoint.max_attempts
            return Change(lease.key, delay, error, reason, traceback, cap)
        case Failed(error, traceback):
            return Change(lease.key, error=error, traceback=traceback)
        case Held(error, traceback, reason):
            return Change(lease.key, error=error, reason=reason, traceback=traceback)
        case Released(reason) | Abandoned(reason):
            return Change(lease.key, reason=reason)
        case _:
            assert_never(outcome)


def _passes(error: DatabaseError) -> bool:
    """Whether the same statement may go through later."""
    if isinstance(error, (ConnectionFailed, ConnectionLost)):
        return True
    return (error.sqlstate or "").startswith(_PASSING)
