"""`holdfast breaker`, and the table it needs."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from holdfast import BreakerPolicy, Holdfast
from holdfast.breaker import Verdicts
from tests.cli.command_line import EVIL, holdfast, inside
from tests.cli.terminal import columns_of, on_a_terminal

if TYPE_CHECKING:
    from tests.servers import Database

STRIPE = BreakerPolicy("stripe", threshold=2, cooldown=timedelta(seconds=90))


def fail(dsn: str, policy: BreakerPolicy = STRIPE) -> None:
    async def work() -> None:
        async with Holdfast.connect(dsn) as hf:
            await hf.store.breakers.record([Verdicts(policy, 0, (False, False))])

    asyncio.run(work())


def test_breakers_are_listed_with_when_they_try_again(installed: str) -> None:
    assert inside("breaker", "list", "--dsn", installed).out == "there is no circuit breaker\n"
    assert inside("breaker", "list", "--json", "--dsn", installed).json == []
    fail(installed)
    shown = inside("breaker", "list", "--dsn", installed).out
    assert all(word in shown for word in ("stripe", "open", "2", "1m 30s"))
    [record] = inside("breaker", "list", "--json", "--dsn", installed).json
    assert (record["name"], record["state"], record["failures"]) == ("stripe", "open", 2)
    assert (record["cooldown_seconds"], record["generation"]) == (90.0, 1)
    assert record["tries_again_at"] > record["opened_at"]


def test_a_breaker_is_held_open_and_closed_by_hand(installed: str) -> None:
    fail(installed)
    held = holdfast("breaker", "open", "stripe", "--reason", f"weekend {EVIL}", dsn=installed)
    assert held.code == 0
    assert held.out == "breaker stripe is held open until `holdfast breaker close stripe`\n"
    shown = holdfast("breaker", "list", dsn=installed).out
    assert "held open" in shown
    assert "weekend" in shown
    assert "cli:" in shown
    assert "\x1b" not in shown
    closed = inside("breaker", "close", "stripe", "--json", "--dsn", installed).json
    assert (closed["state"], closed["actor"], closed["failures"]) == ("closed", None, 0)


def test_who_opens_what_no_worker_has_named_is_told_so(installed: str) -> None:
    done = inside("breaker", "open", "strpie", "--dsn", installed)
    assert done.code == 0
    assert "no worker has named it yet" in done.out


def test_closing_what_is_not_there_is_refused(installed: str) -> None:
    inside("breaker", "close", "nobody", "--dsn", installed).complains(
        1, "no circuit breaker 'nobody'", "holdfast breaker list"
    )


def test_the_table_of_the_breakers_can_be_installed_alone(pg18: Database) -> None:
    missing = inside("breaker", "list", "--dsn", pg18.dsn)
    missing.complains(4, "holdfast install --breakers-only")
    first = inside("install", "--breakers-only", "--dsn", pg18.dsn)
    assert "applied 0002_breakers" in first.out
    assert '"holdfast_breakers" in' in first.out
    assert "nothing to do" in inside("install", "--breakers-only", "--dsn", pg18.dsn).out
    assert inside("breaker", "open", "stripe", "--dsn", pg18.dsn).code == 0
    inside("verify", "--dsn", pg18.dsn).complains(4, "holdfast install")
    assert inside("install", "--dsn", pg18.dsn).code == 0
    [kept] = inside("breaker", "list", "--json", "--dsn", pg18.dsn).json
    assert (kept["name"], kept["state"]) == ("stripe", "open")
    assert inside("uninstall", "--yes", "--dsn", pg18.dsn).code == 0
    inside("breaker", "list", "--dsn", pg18.dsn).complains(4, "holdfast_breakers")


@pytest.mark.parametrize("held", [False, True], ids=["opened by failures", "held by hand"])
def test_a_breaker_can_be_read_in_full_on_80_columns(
    installed: str, held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, reason = "payments_through_stripe_in_europe", "their maintenance until monday at noon"
    fail(installed, replace(STRIPE, name=name))
    if held:
        monkeypatch.setenv("LOGNAME", "ann.of.operations")
        inside("breaker", "open", name, "--reason", reason, "--dsn", installed)
    [record] = inside("breaker", "list", "--json", "--dsn", installed).json
    lines = on_a_terminal("breaker", "list", "--dsn", installed)
    found = columns_of(lines)
    assert list(found) == ["name", "state", "failures", "tries again", "held by", "reason"]
    assert (found["name"], found["state"]) == (name, "heldopen" if held else "open")
    assert (found["held by"], found["reason"]) == (
        (record["actor"], reason.replace(" ", "")) if held else ("", "")
    )
    assert re.fullmatch("" if held else r"in1m\d+s", found["tries again"])
    assert not re.search(r"\d{4}-\d\d-\d\d", "\n".join(lines))
