"""When the claims of a worker take places, and how long it waits when there was none."""

from __future__ import annotations

from holdfast.stores.postgres.claim_places import ClaimPlaces

FLEET = 200


def refusals(places: ClaimPlaces, count: int, *, idle: bool) -> list[float]:
    """The pauses after that many refused claims."""
    pauses = []
    for _ in range(count):
        places.begin(500, FLEET, idle=idle)
        places.refuse()
        places.end(full=False)
        pauses.append(places.pause)
    return pauses


def test_a_small_fleet_takes_no_places() -> None:
    places = ClaimPlaces()
    for fleet, taken in ((0, False), (1, False), (15, False), (16, True)):
        places.begin(500, fleet, idle=True)
        assert places.taken is taken


def test_an_idle_worker_asks_again_soon_and_then_seldom() -> None:
    first, second, *rest = refusals(ClaimPlaces(), 10, idle=True)
    assert first < 0.01
    assert second < 0.03
    assert all(0.9 < pause <= 3 for pause in rest)


def test_a_worker_with_jobs_asks_again_soon() -> None:
    assert all(pause < 0.02 for pause in refusals(ClaimPlaces(), 10, idle=False))


def test_an_answer_ends_the_long_pauses() -> None:
    places = ClaimPlaces()
    refusals(places, 5, idle=True)
    places.begin(500, FLEET, idle=True)
    places.end(full=False)
    assert refusals(places, 1, idle=True)[0] < 0.01


def test_only_a_full_claim_says_that_there_is_a_backlog() -> None:
    places = ClaimPlaces()
    for full in (False, True, False):
        places.begin(500, FLEET, idle=False)
        places.end(full=full)
        assert places.ask("channel", ["mail"])["heavy"] is full


def test_a_worker_that_holds_nothing_and_finds_no_place_leaves_the_backlog() -> None:
    places = ClaimPlaces()
    places.begin(500, FLEET, idle=False)
    places.end(full=True)
    refusals(places, 1, idle=False)
    assert places.ask("channel", ["mail"])["heavy"]
    refusals(places, 1, idle=True)
    assert not places.ask("channel", ["mail"])["heavy"]


def test_small_claims_have_more_places() -> None:
    found = []
    for limit in (1000, 500, 100, 10, 1):
        places = ClaimPlaces()
        places.begin(limit, FLEET, idle=True)
        asked = places.ask("channel", ["mail"])
        found.append((asked["places"], asked["door"]))
    assert found == [(3, 1), (3, 1), (15, 5), (32, 10), (32, 10)]
