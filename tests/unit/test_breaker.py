"""The rules of a circuit breaker, as pure functions of a row, an event and the time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.breaker import (
    Admission,
    Breaker,
    BreakerPolicy,
    BreakerState,
    admit,
    force,
    policy_of,
    record,
    return_permits,
)
from holdfast.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
INSTANT = timedelta(microseconds=1)
CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
S, F = True, False

POLICY = BreakerPolicy(
    "stripe",
    threshold=3,
    cooldown=10 * SECOND,
    max_cooldown=30 * SECOND,
    probes=2,
    probe_lease=5 * SECOND,
)
NEW = Breaker.new("stripe", NOW)


def opened(cooldown: timedelta = POLICY.cooldown) -> Breaker:
    return replace(
        NEW, state=OPEN, generation=1, failures=3, opened_at=NOW, cooldown=cooldown, updated=NOW
    )


def half_open(*expiries: datetime, cooldown: timedelta = POLICY.cooldown) -> Breaker:
    return replace(opened(cooldown), state=HALF_OPEN, generation=2, probes=expiries)


@pytest.mark.parametrize(
    ("verdicts", "state", "failures"),
    [
        ((), CLOSED, 0),
        ((S, S), CLOSED, 0),
        ((F, F), CLOSED, 2),
        ((F, F, S), CLOSED, 0),
        ((F, F, S, F), CLOSED, 1),
        ((F, F, F), OPEN, 3),
        ((S, F, F, F), OPEN, 3),
        ((F, F, F, S), OPEN, 3),
        ((F, F, F, F, F, F), OPEN, 3),
    ],
)
def test_a_closed_breaker_opens_when_so_many_failures_follow_each_other(
    verdicts: Sequence[bool], state: BreakerState, failures: int
) -> None:
    after = record(NEW, POLICY, 0, verdicts, NOW + SECOND)
    assert (after.state, after.failures) == (state, failures)
    assert after.generation == (1 if state is OPEN else 0)
    assert after.opened_at == (NOW + SECOND if state is OPEN else None)
    assert after.cooldown == (POLICY.cooldown if state is OPEN else timedelta(0))


def test_failures_of_many_reports_add_up() -> None:
    after = NEW
    for _ in range(3):
        assert after.state is CLOSED
        after = record(after, POLICY, 0, [F], NOW)
    assert after.state is OPEN


@pytest.mark.parametrize("verdicts", [(), (S,), (S, S, S), (F, S), (F, F, S)])
def test_what_leads_back_to_no_failures_changes_not_even_the_time_of_the_last_change(
    verdicts: Sequence[bool],
) -> None:
    assert record(NEW, POLICY, 0, verdicts, NOW + SECOND) == NEW


@pytest.mark.parametrize("breaker", [NEW, opened(), half_open()], ids=lambda row: row.state)
@pytest.mark.parametrize("generation", [-1, 7])
@pytest.mark.parametrize("verdicts", [(S,), (F, F, F, F)])
def test_outcomes_of_another_generation_do_not_count(
    breaker: Breaker, generation: int, verdicts: Sequence[bool]
) -> None:
    late = breaker.generation + generation
    assert record(breaker, POLICY, late, verdicts, NOW + SECOND) is breaker


def test_an_open_breaker_is_not_moved_by_outcomes_of_its_own_generation() -> None:
    assert record(opened(), POLICY, 1, [S, F, F, F], NOW + SECOND) == opened()


def test_a_closed_breaker_admits_any_number_and_is_not_written() -> None:
    assert admit(NEW, POLICY, NOW + SECOND, 500) == (NEW, Admission(0, None))


@pytest.mark.parametrize("passed", [timedelta(0), SECOND, POLICY.cooldown - INSTANT])
def test_an_open_breaker_admits_nothing_before_its_cooldown_is_over(passed: timedelta) -> None:
    after, admission = admit(opened(), POLICY, NOW + passed, 500)
    assert after == opened()
    assert admission == Admission(1, 0, wait=POLICY.cooldown - passed)


def test_after_the_cooldown_the_first_to_ask_gets_the_probes() -> None:
    now = NOW + POLICY.cooldown
    after, admission = admit(opened(), POLICY, now, 500)
    assert admission == Admission(2, 2, expires=now + POLICY.probe_lease)
    assert (after.state, after.generation) == (HALF_OPEN, 2)
    assert after.probes == (now + POLICY.probe_lease,) * 2


def test_who_wants_nothing_moves_nothing() -> None:
    now = NOW + POLICY.cooldown
    assert admit(opened(), POLICY, now, 0) == (opened(), Admission(1, 0, wait=timedelta(0)))
    assert admit(half_open(), POLICY, now, 0) == (half_open(), Admission(2, 0, wait=timedelta(0)))


@pytest.mark.parametrize(("live", "wait"), [(0, 0), (1, 0), (2, 4)])
def test_who_only_looks_waits_no_longer_than_until_a_probe_may_be_had(live: int, wait: int) -> None:
    before = half_open(*[NOW + 5 * SECOND] * live)
    assert admit(before, POLICY, NOW + SECOND, 0) == (before, Admission(2, 0, wait=wait * SECOND))


@pytest.mark.parametrize(
    ("live", "wanted", "granted"), [(0, 1, 1), (0, 2, 2), (0, 9, 2), (1, 9, 1), (2, 9, 0)]
)
def test_no_more_probes_are_out_at_once_than_allowed(live: int, wanted: int, granted: int) -> None:
    before = half_open(*[NOW + 5 * SECOND] * live)
    after, admission = admit(before, POLICY, NOW + SECOND, wanted)
    assert admission.allowance == granted
    assert len(after.probes) == live + granted
    assert after.generation == admission.generation == 2
    if not granted:
        assert after == before
        assert admission.wait == 4 * SECOND


def test_an_expired_probe_makes_room_for_another_of_the_same_generation() -> None:
    before = half_open(NOW + SECOND, NOW + 3 * SECOND)
    assert admit(before, POLICY, NOW + SECOND - INSTANT, 9)[1].allowance == 0
    after, admission = admit(before, POLICY, NOW + SECOND, 9)
    assert admission == Admission(2, 1, expires=NOW + 6 * SECOND)
    assert after.probes == (NOW + 3 * SECOND, NOW + 6 * SECOND)


def test_a_probe_that_succeeds_closes_the_breaker_and_forgets_the_longer_cooldown() -> None:
    before = half_open(NOW + SECOND, cooldown=20 * SECOND)
    after = record(before, POLICY, 2, [S], NOW + SECOND)
    assert after == replace(Breaker.new("stripe", NOW + SECOND), generation=3)
    again = record(after, POLICY, 3, [F, F, F], NOW + SECOND)
    assert again.cooldown == POLICY.cooldown


@pytest.mark.parametrize(("cooldown", "longer"), [(10, 20), (20, 30), (30, 30), (1, 10)])
def test_a_probe_that_fails_opens_the_breaker_for_longer_up_to_the_limit(
    cooldown: int, longer: int
) -> None:
    before = half_open(NOW + SECOND, cooldown=cooldown * SECOND)
    after = record(before, POLICY, 2, [F], NOW + SECOND)
    assert (after.state, after.generation, after.probes) == (OPEN, 3, ())
    assert (after.opened_at, after.cooldown) == (NOW + SECOND, longer * SECOND)
    assert after.tries_again_at == NOW + SECOND + longer * SECOND


@pytest.mark.parametrize(("verdicts", "state"), [((S, F), CLOSED), ((F, S), OPEN)])
def test_of_several_probes_the_first_outcome_decides(
    verdicts: Sequence[bool], state: BreakerState
) -> None:
    before = half_open(NOW + SECOND, NOW + SECOND)
    after = record(before, POLICY, 2, verdicts, NOW)
    assert (after.state, after.generation) == (state, 3)


def test_a_permit_that_found_no_work_is_given_back() -> None:
    before = half_open(NOW + SECOND, NOW + 2 * SECOND, NOW + 2 * SECOND)
    after = return_permits(before, 2, NOW + 2 * SECOND, 1, NOW)
    assert after.probes == (NOW + SECOND, NOW + 2 * SECOND)
    assert return_permits(after, 2, NOW + 2 * SECOND, 5, NOW).probes == (NOW + SECOND,)


@pytest.mark.parametrize("generation", [1, 3])
def test_a_permit_of_another_generation_is_not_given_back(generation: int) -> None:
    before = half_open(NOW + SECOND)
    assert return_permits(before, generation, NOW + SECOND, 1, NOW) is before


def test_who_gives_back_an_expired_permit_takes_none_from_its_successor() -> None:
    first = half_open(NOW + SECOND, NOW + SECOND)
    second, _ = admit(first, POLICY, NOW + SECOND, 2)
    assert return_permits(second, 2, NOW + SECOND, 2, NOW + SECOND) is second


@pytest.mark.parametrize("before", [NEW, opened(), half_open(NOW)], ids=lambda row: row.state)
def test_a_breaker_that_is_held_open_does_not_try_again(before: Breaker) -> None:
    held = force(before, OPEN, "me", "their weekend", NOW + SECOND)
    assert (held.state, held.actor, held.reason, held.probes) == (OPEN, "me", "their weekend", ())
    assert (held.generation > before.generation) is (before.state is not OPEN)
    for passed in (timedelta(0), POLICY.max_cooldown, timedelta(days=365)):
        assert admit(held, POLICY, NOW + passed, 5) == (held, Admission(held.generation, 0))
    closed = force(held, CLOSED, "me", None, NOW + 2 * SECOND)
    assert closed == replace(
        Breaker.new("stripe", NOW + 2 * SECOND), generation=held.generation + 1
    )


@pytest.mark.parametrize("before", [opened(), half_open(NOW)], ids=lambda row: row.state)
def test_a_breaker_can_be_closed_by_hand(before: Breaker) -> None:
    closed = force(before, CLOSED, "me", None, NOW + SECOND)
    assert closed.generation == before.generation + 1
    assert admit(closed, POLICY, NOW + SECOND, 1)[1] == Admission(closed.generation, None)


def test_closing_a_closed_breaker_forgets_its_failures() -> None:
    failing = record(NEW, POLICY, 0, [F, F], NOW)
    assert force(failing, CLOSED, "me", None, NOW) == NEW
    assert force(NEW, CLOSED, "me", None, NOW + SECOND) == NEW


def test_a_breaker_cannot_be_forced_half_open() -> None:
    with pytest.raises(InvalidInput, match="half_open"):
        force(NEW, HALF_OPEN, "me", None, NOW)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.integers(0, 3)),
        st.tuples(st.just("record"), st.tuples(st.integers(0, 9), st.lists(st.booleans()))),
        st.tuples(st.just("pass"), st.integers(0, 12)),
        st.tuples(st.just("give back"), st.integers(0, 3)),
    ),
    max_size=40,
)


@given(STEPS)
def test_whatever_happens_the_invariants_hold(steps: list[tuple[str, Any]]) -> None:
    """States follow each other as drawn, and no more probes live than are allowed."""
    legal = {(CLOSED, OPEN), (OPEN, HALF_OPEN), (HALF_OPEN, CLOSED), (HALF_OPEN, OPEN)}
    breaker, now, last = NEW, NOW, Admission(0, None)
    for what, value in steps:
        before = breaker
        if what == "admit":
            breaker, admission = admit(breaker, POLICY, now, value)
            last = admission if admission.expires else last
            assert (admission.allowance is None) is (before.state is CLOSED)
            assert admission.generation == breaker.generation
        elif what == "record":
            generation, verdicts = value
            breaker = record(breaker, POLICY, generation, verdicts, now)
        elif what == "give back" and last.expires:
            breaker = return_permits(breaker, last.generation, last.expires, value, now)
        else:
            now += value * SECOND if what == "pass" else timedelta(0)
        assert breaker.generation - before.generation == (breaker.state is not before.state)
        assert breaker.state is before.state or (before.state, breaker.state) in legal
        assert sum(expiry > now for expiry in breaker.probes) <= POLICY.probes
        assert (breaker.state is CLOSED) == (breaker.opened_at is None)
        assert breaker.state is HALF_OPEN or not breaker.probes


def test_a_policy_reports_all_its_faults_at_once() -> None:
    with pytest.raises(InvalidInput) as refused:
        BreakerPolicy(
            "",
            threshold=0,
            cooldown=timedelta(0),
            probes=True,
            probe_lease=3,  # type: ignore[arg-type]
            ignore=(ValueError, "TypeError"),  # type: ignore[arg-type]
        )
    for fault in ("name", "threshold", "cooldown", "probes", "probe_lease", "ignore"):
        assert fault in str(refused.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cooldown": timedelta(hours=1)}, "max_cooldown must be at least the cooldown of 1:00:00"),
        ({"max_cooldown": timedelta.max}, "max_cooldown must be a timedelta of 1 ms to 36525 days"),
        ({"threshold": 2**31}, "threshold must be an integer from 1 to 2147483647"),
        ({"threshold": 2.0}, "threshold must be an integer"),
        ({"ignore": [ValueError]}, "ignore must be a tuple of exception classes"),
        ({"name": "x" * 201}, "201 characters"),
        ({"name": "a\0b"}, "NUL"),
        ({"name": "a\ud800"}, "surrogate"),
        ({"name": 7}, "the name must be a string"),
    ],
)
def test_a_policy_that_cannot_work_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        BreakerPolicy(**{"name": "stripe", **options})


def test_a_name_alone_is_a_policy_with_the_defaults() -> None:
    assert policy_of("stripe") == BreakerPolicy("stripe")
    assert policy_of(POLICY) is POLICY
    with pytest.raises(InvalidInput, match="must be a name or a BreakerPolicy, got 7"):
        policy_of(7)  # type: ignore[arg-type]
