"""Template + binding + lifecycle -> the statements that run. Guards and effects in SQL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING

from holdfast.lifecycle import (
    FINAL,
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
from holdfast.stores.postgres.binding import (
    BREAKER_COLUMNS,
    CLAIMED_COLUMNS,
    CLAIMED_VALUES,
    HIDDEN_COLUMNS,
    JOB_COLUMNS,
    LOG_COLUMNS,
    SCHEDULE_COLUMNS,
    Binding,
)
from holdfast.stores.postgres.lanes import MOST_OF_A_LANE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.settings import Names

_NO_CAP = 2147483647
_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")


IDS = "cast((select :held_ids::text::bigint[]) as bigint[])"
"""Sent as text, which drivers write ten times faster than an array; read once, not for each row."""

PATIENCE = "set_config('lock_timeout', '100ms', true)"
"""What a worker's change waits for a row at most: the others of its batch must not wait longer."""

_PLACE = f"width_bucket(j.id, {IDS})"


def _item(name: str, kind: str) -> str:
    """The value given for row `j`, from an array parallel to the sorted ids."""
    return f"(:{name}::{kind}[])[{_PLACE}]"


_LANE_CAP = f"coalesce(j.max_attempts, l.max_attempts, {_NO_CAP})"
_ROW_CAP = f"coalesce(j.max_attempts, {_item('max_attempts', 'integer')}, {_NO_CAP})"

GUARDS: Mapping[Guard, str] = {
    Guard.OWNED: (
        f"j.claim_token = (:tokens::uuid[])"
        f"[(cast((select :owners::text::integer[]) as integer[]))[{_PLACE}]]"
    ),
    Guard.DUE: "j.execute_after <= (select now from clock)",
    Guard.ATTEMPTS_LEFT: f"j.attempts < {_LANE_CAP}",
    Guard.ATTEMPTS_SPENT: f"j.attempts >= {_LANE_CAP}",
    Guard.RETRY_LEFT: f"j.attempts + 1 < {_ROW_CAP}",
    Guard.RETRY_SPENT: f"j.attempts + 1 >= {_ROW_CAP}",
    Guard.STALE: "j.heartbeat + j.lease <= (select now from clock)",
    Guard.RECOVERY_LEFT: "not s.spent",
    Guard.RECOVERY_SPENT: "s.spent",
    Guard.KEY_FREE: "i.free",
}
"""`j` is the row, `l` the lane it was found in, `s` and `i` what the statement judged before."""

EFFECTS: Mapping[Effect, str] = {
    Effect.TAKE_LEASE: (
        "claim_token = :token::uuid, claimed_by = :worker::text, "
        "claimed_at = clock.now, heartbeat = clock.now, "
        "lease = (:leases::interval[])[array_position(:entrypoints::text[], j.entrypoint)]"
    ),
    Effect.RENEW_LEASE: "heartbeat = clock.now",
    Effect.FREE_LEASE: (
        "claim_token = null, claimed_by = null, claimed_at = null, heartbeat = null, lease = null"
    ),
    Effect.COUNT_ATTEMPT: "attempts = j.attempts + 1",
    Effect.COUNT_RECOVERY: "recoveries = j.recoveries + 1",
    Effect.RESET_COUNTERS: "attempts = 0, recoveries = 0",
    Effect.DELAY: (
        f"execute_after = clock.now + coalesce({_item('delays', 'interval')}, interval '0')"
    ),
    Effect.DUE_NOW: "execute_after = clock.now",
    Effect.NOTE_ERROR: f"last_error = {_item('errors', 'text')}, last_error_at = clock.now",
    Effect.NOTE_STALE: (
        f"last_error = coalesce(j.last_error, '{STALE_ERROR}'), last_error_at = clock.now"
    ),
    Effect.PARK: "held_at = clock.now",
    Effect.UNPARK: "held_at = null",
    Effect.REPLACE_PAYLOAD: "payload = :payload::bytea",
}

READING = ("get", "list_held", "list_running", "browse")
"""Statements that return jobs to people. Each has a twin `name:hidden` for those whose privileges
end before payloads and headers."""

_SEEN_BY_FEW = ", ".join(
    f"null::{HIDDEN_COLUMNS[column]} as {column}" if column in HIDDEN_COLUMNS else f"j.{column}"
    for column in JOB_COLUMNS
)

_ON_CONFLICT = {
    "raise": "",
    "skip": "on conflict (dedupe_key) where held_at is null and dedupe_key is not null do nothing",
}

_SKIPPED = {
    "raise": "null::text[]",
    "skip": (
        "nullif(array(select k from unnest(:dedupe_keys::text[]) as k where k is not null "
        "except select dedupe_key from new), '{}')"
    ),
}
"""The keys given that belong to other jobs."""

_LISTENERS = "hashtextextended('listeners of ' || :channel::text, 0)"
_NEEDED = (
    # A session's own lock does not stand in its way.
    "case when :channel::text in (select pg_listening_channels()) then true "
    f"when pg_try_advisory_lock({_LISTENERS}) then not pg_advisory_unlock({_LISTENERS}) "
    "else true end"
)
"""Whether some listener has said that it needs to be told, by sharing a lock."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A text with $1…$n, and the names of its values in that order."""

    name: str
    text: str
    parameters: tuple[str, ...]

    def args(self, values: Mapping[str, object]) -> list[object]:
        return [values[parameter] for parameter in self.parameters]


def number(name: str, text: str) -> Statement:
    """Turn `:name` into `$n`."""
    order: dict[str, int] = {}

    def place(match: re.Match[str]) -> str:
        return f"${order.setdefault(match[1], len(order) + 1)}"

    return Statement(name, _PARAMETER.sub(place, text), tuple(order))


def template(file: str) -> str:
    text = resources.files(__package__).joinpath("sql", f"{file}.sql").read_text("utf-8")
    body = [line for line in text.splitlines() if not line.startswith("--")]
    return "\n".join(body)


def sets(transition: Transition, binding: Binding) -> str:
    """The assignments of a transition; a renewal is no change anyone needs to be told of."""
    parts = [EFFECTS[effect] for effect in transition.effects]
    if transition.verb is not Verb.RENEW:
        parts = [binding.become(transition.target), *parts, "updated = clock.now"]
    return ", ".join(parts)


def guards(transition: Transition, binding: Binding) -> str:
    """The conditions of a transition.

    Owning the token implies being picked (a constraint of the table), and saying so again would
    let statistics taken while nothing was picked choose a scan of the backlog.
    """
    conditions = [GUARDS[guard] for guard in transition.guards]
    if Guard.OWNED not in transition.guards:
        conditions.insert(0, binding.is_in(transition.sources))
    return " and ".join(conditions)


def _literal(text: str | None) -> str:
    return "null::text" if text is None else f"'{text}'"


class Statements:
    """Every statement that runs against one set of tables, by name."""

    def __init__(self, names: Names) -> None:
        self.binding = Binding(names)
        self._common = {
            **self.binding.relations,
            "columns": ", ".join(f"j.{column}" for column in JOB_COLUMNS),
            "seen": ", ".join(f"j.{column}" for column in JOB_COLUMNS),
            "claimed_columns": ", ".join(f"j.{column}" for column in CLAIMED_COLUMNS),
            "claimed_values": ", ".join(CLAIMED_VALUES),
            "ids": IDS,
            "place": _PLACE,
            "log_columns": ", ".join(f"l.{column}" for column in LOG_COLUMNS),
            "schedule_columns": ", ".join(f"s.{column}" for column in SCHEDULE_COLUMNS),
            "breaker_columns": ", ".join(f"b.{column}" for column in BREAKER_COLUMNS),
            "final": f"({', '.join(self.binding.word(status) for status in FINAL)})",
            "on_conflict": _ON_CONFLICT["skip"],
            "needed": _NEEDED,
            "patience": PATIENCE,
        }
        self._all = {statement.name: statement for statement in self._render_all()}

    def __getitem__(self, name: str) -> Statement:
        return self._all[name]

    def names(self) -> list[str]:
        return sorted(self._all)

    def _fill(self, name: str, file: str, **parts: str) -> Statement:
        return number(name, template(file).format(**{**self._common, **parts}))

    def _render_all(self) -> list[Statement]:
        plain = [
            "running",
            "claimed_under",
            "locked",
            "forget",
            "forget_ended",
            "forget_workers",
            "get",
            "statuses",
            "list_held",
            "list_running",
            "browse",
            "size",
            "history",
            "log",
            "aggregate",
            "statistics",
            "prune",
            "report",
            "farewell",
            "workers",
            "now",
            "dead_rows",
            "sees_payloads",
            "enqueue_close",
            "enqueue_recall",
            "forget_enqueues",
            "schedule_register",
            "schedule_due",
            "schedule_advance",
            "schedule_all",
            "schedule_pause",
            "schedule_remove",
            "breaker_read",
            "breaker_register",
            "breaker_write",
        ]
        return [
            *(self._fill(file, file) for file in plain),
            *(
                self._fill(f"enqueue:{word}", "insert", on_conflict=clause, skipped=_SKIPPED[word])
                for word, clause in _ON_CONFLICT.items()
            ),
            *(
                self._fill(f"enqueue_one:{word}", "insert_one", on_conflict=clause)
                for word, clause in _ON_CONFLICT.items()
            ),
            *(self._fill(f"{file}:hidden", file, seen=_SEEN_BY_FEW) for file in READING),
            self._claim(),
            self._reading("lanes"),
            self._reading("oldest"),
            self._recover(),
            self._requeue(),
            self._edit(),
            *(self._change(row) for row in TRANSITIONS.values() if _is_change(row)),
            *(self._remove(row) for row in TRANSITIONS.values() if _is_removal(row)),
        ]

    def _claim(self) -> Statement:
        claim, retire = TRANSITIONS[Verb.CLAIM], RETIRE_UNCLAIMABLE
        return self._fill(
            Verb.CLAIM,
            "claim",
            claimable=self.binding.is_in(claim.sources),
            spent=GUARDS[Guard.ATTEMPTS_SPENT],
            most=str(MOST_OF_A_LANE),
            claim=sets(claim, self.binding),
            retire=sets(retire, self.binding),
            retired=self.binding.word(retire.target),
            retire_reason=_literal(retire.reason),
        )

    def _reading(self, name: str) -> Statement:
        claimable = self.binding.is_in(TRANSITIONS[Verb.CLAIM].sources)
        return self._fill(name, name, claimable=claimable)

    def _recover(self) -> Statement:
        recover, retire = TRANSITIONS[Verb.RECOVER], RETIRE_STALE
        return self._fill(
            Verb.RECOVER,
            "recover",
            stale=GUARDS[Guard.STALE],
            recover=sets(recover, self.binding),
            retire=sets(retire, self.binding),
            recovered=self.binding.word(recover.target),
            retired=self.binding.word(retire.target),
            recover_reason=_literal(recover.reason),
            retire_reason=_literal(retire.reason),
        )

    def _requeue(self) -> Statement:
        row = TRANSITIONS[Verb.REQUEUE]
        return self._fill(
            row.name,
            "requeue",
            held=self.binding.is_in(row.sources),
            sets=sets(row, self.binding),
            target=self.binding.word(row.target),
            reason=_literal(row.reason),
        )

    def _edit(self) -> Statement:
        row = TRANSITIONS[Verb.EDIT]
        return self._fill(
            row.name,
            "edit",
            sources=self.binding.is_in(row.sources),
            sets=sets(row, self.binding),
            reason=_literal(row.reason),
        )

    def _change(self, row: Transition) -> Statement:
        file = "renew" if row.verb is Verb.RENEW else "leave" if row.leaves else "stay"
        return self._fill(
            row.name,
            file,
            guards=guards(row, self.binding),
            sets=sets(row, self.binding),
            target=self.binding.word(row.target),
            reason=_literal(row.reason),
            claimable_now=f"status = {self.binding.word(Status.QUEUED)}",
        )

    def _remove(self, row: Transition) -> Statement:
        return self._fill(
            row.name,
            "remove",
            sources=self.binding.is_in(row.sources),
            target=self.binding.word(row.target),
            reason=_literal(row.reason),
        )


def _is_change(row: Transition) -> bool:
    """Made by the holder of a lease."""
    return Guard.OWNED in row.guards


def _is_removal(row: Transition) -> bool:
    """Made by a person, on a row that leaves."""
    return row.leaves and Guard.OWNED not in row.guards


@lru_cache(maxsize=64)
def statements(names: Names) -> Statements:
    return Statements(names)
