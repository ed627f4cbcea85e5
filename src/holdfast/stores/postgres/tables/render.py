"""The lifecycle in the words of a user's table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.lifecycle import (
    CLAIM_RECOVERED,
    CLAIM_SUSPECT,
    LEAST_RECOVERIES_CAP,
    LIVE,
    RECOVER_OUTAGE,
    RETIRE_STALE,
    RETIRE_UNCLAIMABLE,
    STALE_ERROR,
    TRANSITIONS,
    Effect,
    Guard,
    Status,
    Transition,
    Verb,
)
from holdfast.stores.postgres.render import PATIENCE, SINCE, Statement, number, template
from holdfast.stores.postgres.tables.fit import Deaths, Fit, quote, quoted_table
from holdfast.table import order_item

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

DEATH_ERROR = "retired: its worker died while this row ran alone"
"""Begins the last_error of a row that was retired because its worker died."""

LONE_VERSION = 8
"""The version of a token under which a worker holds a suspect and nothing else."""

_DEATH = f"'{DEATH_ERROR}'"
_NO_CAP = 2147483647
LOOK_AHEAD = 1000
"""Recovered rows are looked for among this many due rows, the first in the queue's order.

They were claimed once, so they are near its beginning. Without a bound a table that has no index
for them would be read from end to end.
"""
_CLAIMS_OF_RECOVERED = {
    Deaths.COUNTED: (CLAIM_RECOVERED, CLAIM_SUSPECT),
    # Every recovered row is a suspect.
    Deaths.DERIVED: (CLAIM_SUSPECT,),
    Deaths.UNKNOWN: (),
}
_FINAL_WORDS = {status: str(status) for status in Status}
_WHERE, _COLUMNS = "/* where */", "/* columns */"
"""Placeholders for the user's own SQL while `:name` is numbered, because it may contain colons."""


class TableWords:
    """Guards, effects and states as SQL on row `j` of one table."""

    def __init__(self, fit: Fit) -> None:
        self._fit = fit
        self._queue = fit.queue

    def column(self, part: str) -> str:
        return f"j.{quote(self._fit.parts[part])}"

    def has(self, part: str) -> bool:
        return part in self._fit.parts

    def counter(self, part: str) -> str:
        """A number that a row made by another program may lack."""
        return f"coalesce({self.column(part)}, 0)"

    def fitted(self, part: str, text: str) -> str:
        """A text cut to what its column takes: an outcome must not be refused for its length."""
        kind = self._fit.lengths.get(self._fit.parts.get(part, ""))
        return f"({text})::{kind}" if kind else text

    def item(self, name: str, kind: str) -> str:
        # Sorted by code point on our side, so not by the column's collation here.
        text = self._fit.key_type in ("text", "character varying")
        place = self.column("key") + (' collate "C"' if text else "")
        return f"(:{name}::{kind}[])[width_bucket({place}, :ids::{self._fit.key_type}[])]"

    @property
    def waiting(self) -> str:
        return f"{self.column('inactive')} = false and {self.column('claimed_at')} is null"

    @property
    def picked(self) -> str:
        return f"{self.column('inactive')} = false and {self.column('claimed_at')} is not null"

    @property
    def order(self) -> str:
        """The key at the end makes it the same order every time.

        The claim is null in all rows that wait; naming it lets an index that begins with it serve.
        """
        first = [self.column("claimed_at")] if self._fit.claim_leads else []
        items = [f"j.{quote(name)}{way}" for name, way in map(order_item, self._queue.ordering)]
        return ", ".join([*first, *items, self.column("key")])

    @property
    def cap(self) -> str:
        if self.has("max_attempts"):
            return f"coalesce({self.column('max_attempts')}, {_NO_CAP})"
        return str(self._queue.max_attempts or _NO_CAP)

    @property
    def retired(self) -> str:
        """Whether the row is retired and waits for a person, as far as the table shows it."""
        inactive = f"{self.column('inactive')} and {self.column('claimed_at')} is null"
        return f"({inactive} and {self._failed})"

    @property
    def _failed(self) -> str:
        """Whether an inactive row ended with a failure."""
        if self.has("outcome"):
            return f"coalesce({self.column('outcome')} = '{RETIRE_STALE.target}', false)"
        signs = [f"{self.counter('attempts')} >= {self.cap}"]
        if self.has("recoveries"):
            signs.append(f"{self.counter('recoveries')} >= {self._max_recoveries}")
        if self.has("last_error_at") and self.has("updated_at"):
            error, update = self.column("last_error_at"), self.column("updated_at")
            signs.append(f"coalesce({error} >= {update}, false)")
        elif self._fit.deaths is Deaths.DERIVED and self.has("last_error"):
            signs.append(f"coalesce({self._says_death}, false)")
        return f"({' or '.join(signs)})"

    @property
    def _max_recoveries(self) -> int:
        """A first death happens beside other rows and proves nothing, so a cap of 1 means 2."""
        return max(self._queue.max_recoveries, LEAST_RECOVERIES_CAP)

    @property
    def recovered(self) -> str:
        """A worker died with the row. May be null, which means no."""
        if self._fit.deaths is Deaths.COUNTED:
            return f"{self.counter('recoveries')} > 0"
        return self.suspect

    @property
    def suspect(self) -> str:
        """One more death would retire the row. May be null, which means no.

        Without a counter the answer is derived from two instants. A recovery sets last_error_at
        and leaves `due` alone, and a row that was claimed was due, so last_error_at is later. A
        failure moves `due` to last_error_at or beyond and thereby clears the row.
        """
        if self._fit.deaths is Deaths.COUNTED:
            return f"{self.counter('recoveries')} + 1 >= {self._max_recoveries}"
        if self._fit.deaths is Deaths.UNKNOWN:
            return "false"
        noted = f"{self.column('last_error')} is not null and " if self.has("last_error") else ""
        return f"{noted}{self.column('last_error_at')} > {self.column('due')}"

    @property
    def convicted(self) -> str:
        """The stale row was a suspect and the only row that its worker held.

        The token says so (see `lone_token`). Rows that are still claimed under the same token
        would not: a neighbour that was locked, paused or recovered first is missing there.
        """
        alone = f"substr({self.column('claim_token')}::text, 15, 1) = '{LONE_VERSION}'"
        return f"({self.suspect} and {alone}) is true"

    @property
    def _says_death(self) -> str:
        return f"starts_with({self.column('last_error')}, {self.fitted('last_error', _DEATH)})"

    @property
    def quiet(self) -> str:
        """Neither claimed nor renewed within a lease."""
        claimed = self.column("claimed_at")
        beat = (
            f"coalesce({self.column('heartbeat')}, {claimed})" if self.has("heartbeat") else claimed
        )
        old = "(select now from clock) - :lease::interval"
        return f"{claimed} <= {old} and {beat} <= {old}"

    @property
    def stale(self) -> str:
        worker = self.fitted("claimed_by", ":worker::text")
        by = f"{self.column('claimed_by')} = {worker}" if self.has("claimed_by") else "false"
        return f"case when :worker::text is null then {self.quiet} else {by} end"

    @property
    def excused(self) -> str:
        """Neither claimed nor renewed since the last outage of the database."""
        beats = [self.column(part) for part in ("claimed_at", "heartbeat") if self.has(part)]
        before = f"greatest({', '.join(beats)}) < (select since from clock)"
        return f"(:worker::text is null and coalesce({before}, false))"

    def guard(self, guard: Guard) -> str:
        attempts = self.counter("attempts")
        return {
            Guard.OWNED: f"{self.column('claim_token')} = {self.item('tokens', 'uuid')}",
            Guard.DUE: f"{self.column('due')} <= (select now from clock)",
            Guard.ATTEMPTS_LEFT: f"{attempts} < {self.cap}",
            Guard.ATTEMPTS_SPENT: f"{attempts} >= {self.cap}",
            Guard.RETRY_LEFT: f"{attempts} + 1 < {self.cap}",
            Guard.RETRY_SPENT: f"{attempts} + 1 >= {self.cap}",
            Guard.STALE: self.stale,
            Guard.NEVER_RECOVERED: f"({self.recovered}) is not true",
            Guard.RECOVERED: self.recovered,
            Guard.RECOVERY_LEFT: f"({self.suspect}) is not true",
            Guard.RECOVERY_SPENT: self.suspect,
            Guard.COUNTED: f"not {self.excused}",
            Guard.EXCUSED: self.excused,
            Guard.KEY_FREE: "true",
        }[guard]

    def sets(self, transition: Transition) -> str:
        """The assignments of a transition. A row that would leave the queue table is freed and
        stays."""
        effects = [*transition.effects]
        if transition.leaves:
            effects.append(Effect.FREE_LEASE)
        written = dict(self._state(transition))
        for effect in effects:
            written |= self._effect(effect)
        written |= self._evidence(transition)
        if transition.verb is not Verb.RENEW:
            written |= {"updated_at": "clock.now"}
        known = {part: value for part, value in written.items() if self.has(part)}
        return ", ".join(
            f"{quote(self._fit.parts[part])} = {value}" for part, value in known.items()
        )

    def _evidence(self, transition: Transition) -> Mapping[str, str]:
        """The assignments of a transition by which deaths can be distinguished from failures."""
        if transition is RETIRE_STALE and self.has("last_error"):
            error = self.column("last_error")
            told = f"case when {self._says_death} then {error} else {_DEATH}"
            before = f"coalesce('; before that: ' || {error}, '')"
            return {"last_error": self.fitted("last_error", f"{told} || {before} end")}
        failed = Effect.NOTE_ERROR in transition.effects
        if failed and Effect.DELAY not in transition.effects and self._fit.deaths is Deaths.DERIVED:
            # Otherwise a person who reactivates a row that failed would make it a suspect.
            return {"due": f"greatest({self.column('due')}, clock.now)"}
        return {}

    def guards(self, transition: Transition) -> str:
        # A table that cannot know of deaths has no recovered rows.
        known = self._fit.deaths is not Deaths.UNKNOWN
        conditions = [
            self.guard(guard)
            for guard in transition.guards
            if known or guard is not Guard.NEVER_RECOVERED
        ]
        if Guard.OWNED not in transition.guards:
            conditions.insert(0, self.waiting)
        return _all_of(conditions)

    @property
    def ready(self) -> str:
        """Due, and with attempts left."""
        guards = (Guard.DUE, Guard.ATTEMPTS_LEFT)
        return _all_of([self.waiting, *map(self.guard, guards)])

    def chosen(self, transition: Transition) -> str:
        """The condition of a claim of recovered rows on a row that is ready."""
        guards = (Guard.RECOVERED, Guard.RECOVERY_LEFT, Guard.RECOVERY_SPENT)
        return _all_of(self.guard(guard) for guard in guards if guard in transition.guards)

    def _state(self, transition: Transition) -> Mapping[str, str]:
        if transition.target not in LIVE or Effect.MARK_HELD in transition.effects:
            return {"inactive": "true", "outcome": f"'{_FINAL_WORDS[transition.target]}'"}
        return {"outcome": "null"} if transition.verb is Verb.CLAIM else {}

    def _effect(self, effect: Effect) -> Mapping[str, str]:
        renders: dict[Effect, Callable[[], dict[str, str]]] = {
            Effect.TAKE_LEASE: lambda: {
                "claim_token": ":token::uuid",
                "claimed_by": self.fitted("claimed_by", ":worker::text"),
                "claimed_at": "clock.now",
                "heartbeat": "clock.now",
            },
            # Without a column for heartbeats, recovery judges a claim by its age.
            Effect.RENEW_LEASE: lambda: {
                "heartbeat" if self.has("heartbeat") else "claimed_at": "clock.now"
            },
            Effect.FREE_LEASE: lambda: dict.fromkeys(
                ("claim_token", "claimed_by", "claimed_at", "heartbeat"), "null"
            ),
            Effect.COUNT_ATTEMPT: lambda: {"attempts": f"{self.counter('attempts')} + 1"},
            Effect.COUNT_RECOVERY: lambda: (
                {"recoveries": f"{self.counter('recoveries')} + 1"}
                if self.has("recoveries")
                else {}
            ),
            Effect.RESET_COUNTERS: lambda: {"attempts": "0", "recoveries": "0"},
            Effect.DELAY: lambda: {
                "due": f"greatest({self.column('due')}, "
                f"clock.now + coalesce({self.item('delays', 'interval')}, interval '0'))"
            },
            Effect.DUE_NOW: lambda: {"due": "clock.now"},
            Effect.NOTE_ERROR: lambda: {
                "last_error": self.fitted("last_error", self.item("errors", "text")),
                "last_error_at": "clock.now",
            },
            Effect.NOTE_STALE: self._note_stale,
            Effect.MARK_HELD: dict,
            Effect.REPLACE_PAYLOAD: dict,
            Effect.RENAME: dict,
            Effect.CLEAR_HELD: lambda: {"inactive": "false", "outcome": "null"},
        }
        return renders[effect]()

    def _note_stale(self) -> dict[str, str]:
        if not self.has("last_error"):
            return {"last_error_at": "clock.now"}
        words = f"coalesce({self.column('last_error')}, '{STALE_ERROR}')"
        return {"last_error": self.fitted("last_error", words), "last_error_at": "clock.now"}


def _all_of(conditions: Iterable[str]) -> str:
    """Each once: to a table without a counter, recovered and suspect are the same."""
    return " and ".join(dict.fromkeys(conditions))


def render(fit: Fit) -> dict[str, Statement]:
    """Every statement that runs against the table, by name."""
    words = TableWords(fit)
    common = _common(words, fit)
    theirs = _theirs(fit)

    def fill(name: str, file: str, transition: Transition | None = None) -> Statement:
        parts = dict(common)
        if transition is not None:
            parts |= {"guards": words.guards(transition), "sets": words.sets(transition)}
            parts |= {"chosen": words.chosen(transition)}
        statement = number(name, template(f"table/{file}").format(**parts))
        text = statement.text
        for mark, meant in theirs.items():
            text = text.replace(mark, meant)
        return replace(statement, text=text)

    recovered = _CLAIMS_OF_RECOVERED[fit.deaths]
    changes = [row for row in TRANSITIONS.values() if Guard.OWNED in row.guards]
    return {
        statement.name: statement
        for statement in (
            fill(Verb.CLAIM, "claim", TRANSITIONS[Verb.CLAIM]),
            *(fill(row.name, "claim_recovered", row) for row in recovered),
            *(fill(name, name) for name in ("recovered_waiting",) if recovered),
            fill(Verb.RECOVER, "recover"),
            fill(RETIRE_UNCLAIMABLE.name, "retire", RETIRE_UNCLAIMABLE),
            number("now", template("now")),
            fill("next_due", "next_due"),
            fill("claimed_under", "claimed_under"),
            fill("release_claim", "release_claim", TRANSITIONS[Verb.RELEASE]),
            fill("locked", "locked"),
            fill("inspect", "inspect"),
            fill("count", "count"),
            fill("depth", "depth"),
            *(fill(row.name, "change", row) for row in changes),
        )
    }


def _common(words: TableWords, fit: Fit) -> dict[str, str]:
    """The names of the table and its columns in the templates."""
    return {
        "table": quoted_table(fit.queue),
        "key": words.column("key"),
        "key_type": fit.key_type,
        "due": words.column("due"),
        "claimed_at": words.column("claimed_at"),
        "claim_token": words.column("claim_token"),
        "inactive": words.column("inactive"),
        "attempts": words.counter("attempts"),
        "claimed_by": words.column("claimed_by") if words.has("claimed_by") else "null",
        "last_error": words.column("last_error") if words.has("last_error") else "null",
        "retired": words.retired,
        "quiet": words.quiet,
        "waiting": words.waiting,
        "picked": words.picked,
        "where": _WHERE,
        "columns": _COLUMNS,
        "order": words.order,
        "stale": words.stale,
        "convicted": words.convicted,
        "recovered": words.recovered,
        "suspect": words.suspect,
        "ready": words.ready,
        "look_ahead": str(LOOK_AHEAD),
        "since": SINCE,
        "excused": words.excused,
        "excuse": words.sets(RECOVER_OUTAGE),
        "recover": words.sets(TRANSITIONS[Verb.RECOVER]),
        "retire": words.sets(RETIRE_STALE),
        "patience": PATIENCE,
    }


def _theirs(fit: Fit) -> dict[str, str]:
    return {
        _WHERE: f"and (\n{fit.queue.where}\n)" if fit.queue.where else "",
        _COLUMNS: ", ".join(f"j.{quote(column)}" for column in fit.columns),
    }
