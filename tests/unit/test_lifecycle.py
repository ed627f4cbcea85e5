"""What must be true of the lifecycle table itself, whoever interprets it."""

from __future__ import annotations

from itertools import product

import pytest

from holdfast.lifecycle import (
    ACTIVE,
    FINAL,
    LIFECYCLE,
    LIVE,
    RECOVER_OUTAGE,
    RETIRE_LAST_RETRY,
    RETIRE_STALE,
    RETIRE_UNCLAIMABLE,
    TRANSITIONS,
    Effect,
    Guard,
    Status,
    Transition,
    Verb,
    mermaid,
)

EDGES = [
    pytest.param(row, source, id=f"{row.name}-from-{source or 'nowhere'}")
    for row in LIFECYCLE
    for source in row.sources or (None,)
]
ROWS = [pytest.param(row, id=row.name) for row in LIFECYCLE]

WORKER_VERBS = {Verb.RENEW, Verb.COMPLETE, Verb.RETRY, Verb.FAIL, Verb.HOLD, Verb.RELEASE}
EXCLUSIVE = [
    {Guard.ATTEMPTS_LEFT, Guard.ATTEMPTS_SPENT},
    {Guard.RETRY_LEFT, Guard.RETRY_SPENT},
    {Guard.NEVER_RECOVERED, Guard.RECOVERED},
    {Guard.RECOVERY_LEFT, Guard.RECOVERY_SPENT},
    {Guard.COUNTED, Guard.EXCUSED},
]
CHOICES = [
    (*(row for row in LIFECYCLE if row.verb is Verb.CLAIM), RETIRE_UNCLAIMABLE),
    (TRANSITIONS[Verb.RETRY], RETIRE_LAST_RETRY),
    (TRANSITIONS[Verb.RECOVER], RECOVER_OUTAGE, RETIRE_STALE),
]
"""Transitions among which a statement chooses for each row."""


@pytest.mark.parametrize(("row", "source"), EDGES)
def test_a_lease_is_taken_exactly_on_the_way_into_picked(
    row: Transition, source: Status | None
) -> None:
    enters = row.target is Status.PICKED and source is not Status.PICKED
    assert (Effect.TAKE_LEASE in row.effects) == enters


@pytest.mark.parametrize(("row", "source"), EDGES)
def test_a_lease_is_freed_exactly_when_a_row_that_stays_leaves_picked(
    row: Transition, source: Status | None
) -> None:
    leaves = source is Status.PICKED and row.target is not Status.PICKED and not row.leaves
    assert (Effect.FREE_LEASE in row.effects) == leaves


@pytest.mark.parametrize(("row", "source"), EDGES)
def test_a_job_is_held_exactly_on_the_way_into_failed(
    row: Transition, source: Status | None
) -> None:
    enters = row.target is Status.FAILED and source is not Status.FAILED
    assert (Effect.MARK_HELD in row.effects) == enters


@pytest.mark.parametrize(("row", "source"), EDGES)
def test_a_hold_ends_exactly_when_a_row_that_stays_leaves_failed(
    row: Transition, source: Status | None
) -> None:
    leaves = source is Status.FAILED and row.target is not Status.FAILED and not row.leaves
    assert (Effect.CLEAR_HELD in row.effects) == leaves


@pytest.mark.parametrize(("row", "source"), EDGES)
def test_a_dedupe_key_is_asked_for_exactly_when_a_job_becomes_active(
    row: Transition, source: Status | None
) -> None:
    becomes_active = row.target in ACTIVE and source not in ACTIVE
    assert (Guard.KEY_FREE in row.guards) == becomes_active


@pytest.mark.parametrize("row", ROWS)
def test_final_states_are_never_left(row: Transition) -> None:
    assert not set(row.sources) & set(FINAL)


def test_failed_is_left_only_by_requeue_move_cancel_and_delete() -> None:
    leaving = [row for row in LIFECYCLE if row.target is not Status.FAILED]
    verbs = {row.verb for row in leaving if Status.FAILED in row.sources}
    assert verbs == {Verb.REQUEUE, Verb.MOVE, Verb.CANCEL, Verb.DELETE}


@pytest.mark.parametrize("row", ROWS)
def test_what_the_holder_of_a_lease_does_needs_the_token(row: Transition) -> None:
    by_the_holder = row.verb in WORKER_VERBS or row is RETIRE_LAST_RETRY
    assert (Guard.OWNED in row.guards) == by_the_holder


def test_without_the_token_picked_is_left_only_by_a_stale_lease_or_a_person() -> None:
    unfenced = [
        row for row in LIFECYCLE if Status.PICKED in row.sources and Guard.OWNED not in row.guards
    ]
    assert {row.name for row in unfenced if Guard.STALE not in row.guards} == {Verb.CANCEL}


def test_only_enqueue_claim_and_renew_are_not_logged() -> None:
    unlogged = {row.verb for row in LIFECYCLE if not row.logged}
    assert unlogged == {Verb.ENQUEUE, Verb.CLAIM, Verb.RENEW}


def test_only_enqueue_makes_a_job_out_of_nothing() -> None:
    assert [row.verb for row in LIFECYCLE if not row.sources] == [Verb.ENQUEUE]


def test_every_status_is_either_live_or_final_and_can_be_reached() -> None:
    assert sorted(LIVE + FINAL) == sorted(Status)
    assert {row.target for row in LIFECYCLE} == set(Status)


@pytest.mark.parametrize("row", ROWS)
def test_a_row_leaves_the_table_exactly_when_its_state_is_final(row: Transition) -> None:
    assert row.leaves == (row.target in FINAL)
    assert set(row.sources) <= set(LIVE)


@pytest.mark.parametrize("rows", CHOICES, ids=lambda rows: rows[-1].name)
def test_exactly_one_of_the_transitions_that_a_statement_chooses_from_applies(
    rows: tuple[Transition, ...],
) -> None:
    assert len({row.sources for row in rows}) == 1
    opposites = {guard for pair in EXCLUSIVE for guard in pair}
    given = {guard for row in rows for guard in row.guards} - opposites
    for choice in product(*EXCLUSIVE):
        applying = [row for row in rows if set(row.guards) <= given | set(choice)]
        assert len(applying) == 1, choice


def test_a_recovery_that_follows_an_outage_is_the_only_one_that_is_not_counted() -> None:
    recovering = [TRANSITIONS[Verb.RECOVER], RECOVER_OUTAGE, RETIRE_STALE]
    uncounted = [row for row in recovering if Effect.COUNT_RECOVERY not in row.effects]
    assert uncounted == [RECOVER_OUTAGE]


@pytest.mark.parametrize("row", [RETIRE_STALE, RETIRE_LAST_RETRY, RETIRE_UNCLAIMABLE])
def test_every_retirement_gives_its_reason(row: Transition) -> None:
    assert row.reason in {"crash_loop", "max_attempts"}


def test_every_verb_has_a_row_and_every_row_a_name_of_its_own() -> None:
    assert {row.verb for row in LIFECYCLE} == set(Verb)
    assert len(TRANSITIONS) == len(LIFECYCLE)


def test_every_guard_and_effect_is_used() -> None:
    assert {guard for row in LIFECYCLE for guard in row.guards} == set(Guard)
    assert {effect for row in LIFECYCLE for effect in row.effects} == set(Effect)


@pytest.mark.parametrize(("row", "source"), EDGES)
def test_the_diagram_shows_every_transition(row: Transition, source: Status | None) -> None:
    assert f"{source or '[*]'} --> {row.target}: {row.name}\n" in mermaid()


@pytest.mark.parametrize("verb", Verb)
def test_the_diagram_mentions_every_verb(verb: Verb) -> None:
    assert f": {verb}" in mermaid()


@pytest.mark.parametrize("status", FINAL)
def test_the_diagram_ends_in_every_final_state(status: Status) -> None:
    assert f"{status} --> [*]\n" in mermaid()
