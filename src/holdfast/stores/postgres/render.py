"""Template + binding + lifecycle -> the statements that run. Guards and effects in SQL."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from holdfast.histogram import STEPS
from holdfast.lifecycle import (
    FINAL,
    LEAST_RECOVERIES_CAP,
    MOVE_HELD,
    MOVE_LEASED,
    MOVE_WAITING,
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
from holdfast.settings import OWN_CHANNEL, OWN_CHANNEL_DIGITS
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
from holdfast.stores.postgres.catalogue import DatabaseRole, roles, source
from holdfast.stores.postgres.claim_places import (
    CLAIM_IN_FLEET,
    EPOCH_SECONDS,
    JOINING_PLACES,
    LANES_IN_FLEET,
)
from holdfast.stores.postgres.lanes import LANE_COLUMNS, MOST_OF_A_LANE
from holdfast.stores.postgres.pages import CHOSEN, LISTED, LISTS, MOST_HELD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.settings import Names

_NO_CAP = 2147483647
_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")


IDS = "cast((select :held_ids::text::bigint[]) as bigint[])"
"""Sent as text, which drivers write ten times faster than an array; read once, not for each row."""

PATIENCE = "set_config('lock_timeout', '100ms', true)"
"""A worker's change waits this long for a row. The others of its batch must not wait longer."""

_NOW = "coalesce(:now::timestamptz, clock_timestamp())"
SINCE = (
    "greatest(case when :now::timestamptz is null and pg_postmaster_start_time() between "
    "clock_timestamp() - :lived::interval and clock_timestamp() then pg_postmaster_start_time() "
    "end, "
    f"{_NOW} - :contact::interval, "
    f"case when {_NOW} - :asked::timestamptz > interval '1 second' then {_NOW} end)"
)
"""When the last outage ended that the caller saw. It is the latest of a start of the server which
it lived through, the beginning of its contact, and now if the statement was on its way for more
than a second.

A start in the future says nothing, since the clock was set back after it. A clock that a test gives
has nothing to do with the server's.
"""

UNCOUNTED = """select date_bin('1 minute', l.created, timestamptz '2000-01-01 00:00 UTC') as bucket,
               l.entrypoint, l.priority, l.status, l.created,
               coalesce(l.created - l.claimed_at, interval '0') as busy
        from {log} l
        where l.tx >= (select case when c.tx <= s.newest then c.tx else
                           s.newest - ((s.newest - c.xmin::text::bigint) & 4294967295) + 1 end
                       from {counted} c, ({newest}) s)
          and l.tx <= (select s.newest from ({newest}) s)
          and ((l.xmin::text::bigint - l.tx) & 4294967295) < 2147483648
        limit (select {most})"""
"""Log rows that the statistics do not have yet; no more than `most`, so that a look stays short.

They are those at or above the mark, in the snapshot of the statement itself, so each row is in the
statistics or here. aggregate.sql says what the conditions mean after a restore. The limit is a
subquery because the planner would choose a scan of the whole log for a number that it knows.
"""

_NEWEST_TX = (
    "select greatest(pg_snapshot_xmax(pg_current_snapshot())::text::bigint, "
    "pg_current_xact_id_if_assigned()::text::bigint) as newest"
)

MOST_UNCOUNTED = 50_000

_COUNTS = """select bucket, entrypoint, priority, status, count, busy from {statistics}
      union all
      select bucket, entrypoint, priority, status, 1, busy from ({uncounted}) u"""
"""The counts, and the log rows that are not counted yet."""

_PLACE = f"width_bucket(j.id, {IDS})"


def _item(name: str, kind: str) -> str:
    """The value given for row `j`, from an array parallel to the sorted ids."""
    return f"(:{name}::{kind}[])[{_PLACE}]"


_LANE_CAP = f"coalesce(j.max_attempts, l.max_attempts, {_NO_CAP})"
_ROW_CAP = f"coalesce(j.max_attempts, {_item('max_attempts', 'integer')}, {_NO_CAP})"

_LANE_RECOVERIES = f"greatest({LEAST_RECOVERIES_CAP}, coalesce(j.max_recoveries, l.max_recoveries))"

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
    # The planner has no statistics of this expression. With a bare comparison, statistics taken
    # while all jobs were recovered ones would let it sort the whole lane.
    Guard.NEVER_RECOVERED: "coalesce(j.recoveries = 0, false)",
    Guard.RECOVERED: "j.recoveries > 0",
    Guard.RECOVERY_LEFT: f"j.recoveries + 1 < {_LANE_RECOVERIES}",
    Guard.RECOVERY_SPENT: f"j.recoveries + 1 >= {_LANE_RECOVERIES}",
    Guard.STALE: (
        "greatest(j.heartbeat, (select since from clock)) + j.lease <= (select now from clock)"
    ),
    Guard.COUNTED: "not s.excused",
    Guard.EXCUSED: (
        "(:worker::text is null and coalesce(j.heartbeat < (select since from clock), false))"
    ),
    Guard.KEY_FREE: "i.free",
}
"""`j` is the row, `l` the lane it was found in, `i` what the statement judged before."""

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
    Effect.MARK_HELD: "held_at = clock.now",
    Effect.CLEAR_HELD: "held_at = null",
    Effect.REPLACE_PAYLOAD: "payload = :payload::bytea",
    Effect.RENAME: "entrypoint = coalesce(:entrypoint::text, j.entrypoint)",
}

_KINDS = (Guard.NEVER_RECOVERED, Guard.RECOVERED, Guard.RECOVERY_LEFT, Guard.RECOVERY_SPENT)
"""Guards that tell apart which of the due rows a claim is about."""

WITH_RESULT = f"{Verb.COMPLETE}:with_result"
"""Completes jobs whose tasks store what they return. The others keep the plain statement."""

READING = ("get", "list_held", "list_running", "browse", *LISTS)
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
"""Whether some listener needs NOTIFY, which it declares by sharing a lock."""

_SLEEPER = "hashtextextended('listeners of ' || :channel::text || ' ' || w.id, 0)"
_SLEEPS = (
    f"case when pg_try_advisory_lock({_SLEEPER}) then not pg_advisory_unlock({_SLEEPER}) "
    "else true end"
)
"""Whether worker `w` lives and waits for work: its session shares a lock of its own."""

_ON_DUTY = (
    "(:holder::uuid is null or exists (select from {upkeep} duty where duty.token = :holder::uuid "
    f"and duty.expires > {_NOW}))"
)
"""Whether the worker that sends the statement still does the upkeep. One that was frozen changes
nothing when it wakes up late. Null means that no duty is needed, as for an operator."""

_CLAIM_PLACE = (
    "hashtextextended('claims of ' || :channel::text || ' ' || :place_of::text, {place} "
    f"+ 1000 * (extract(epoch from {_NOW})::bigint / {EPOCH_SECONDS}))"
)
_TAKES_PLACE = (
    ",\n           case when :heavy::boolean then exists ("
    "\n               select from generate_series(1, :places::integer) as place"
    f"\n               where pg_try_advisory_xact_lock({_CLAIM_PLACE.format(place='place')})"
    "\n           ) else"
    f" pg_try_advisory_xact_lock_shared({_CLAIM_PLACE.format(place=':door::integer')}) and exists ("
    f"\n               select from generate_series({-JOINING_PLACES}, -1) as place"
    f"\n               where pg_try_advisory_xact_lock({_CLAIM_PLACE.format(place='place')})"
    "\n           ) end as admitted"
)
_IN_FLEET = {
    "takes_place": _TAKES_PLACE,
    "admitted": " where (select admitted from clock)",
}
_ALONE = {"takes_place": "", "admitted": "", "refused": ""}
"""How a claim or a scan takes one of the few places of an entrypoint (claim_places.py). Without a
free one it returns a single row of nulls where it needs one. The statements of small fleets have
none of this."""

_OWN_CHANNEL = (
    f"'{OWN_CHANNEL}' || left(encode(sha256(convert_to(:channel::text || ' ' || w.id, 'UTF8')), "
    f"'hex'), {OWN_CHANNEL_DIGITS})"
)
"""The channel of worker `w` alone: what settings.own_channel() computes."""

_MOST_WOKEN = "200"
"""Workers that one enqueue wakes. Those pass on what they cannot take."""


_WRITES = re.compile(
    r"\b(insert|update|delete|merge|lock|vacuum|pg_notify|set_config|nextval|\w*advisory\w*)\b"
)


@dataclass(frozen=True, slots=True)
class Statement:
    """A text with $1…$n, and the names of its values in that order."""

    name: str
    text: str
    parameters: tuple[str, ...]
    reads: bool = False
    """It changes nothing, so it may be sent again when its reply was lost."""
    file: str = ""
    """The template it was rendered from."""

    @property
    def role(self) -> DatabaseRole:
        """The role that exists for it; several may run it."""
        return roles()[self.file]

    def args(self, values: Mapping[str, object]) -> list[object]:
        return [values[parameter] for parameter in self.parameters]


def number(name: str, text: str) -> Statement:
    """Turn `:name` into `$n`."""
    order: dict[str, int] = {}

    def place(match: re.Match[str]) -> str:
        return f"${order.setdefault(match[1], len(order) + 1)}"

    numbered = _PARAMETER.sub(place, text)
    return Statement(name, numbered, tuple(order), reads=_WRITES.search(numbered) is None)


def template(file: str) -> str:
    body = [line for line in source(file).splitlines() if not line.startswith("--")]
    return "\n".join(body)


def sets(transition: Transition, binding: Binding) -> str:
    """The assignments of a transition. A renewal changes nothing that anyone is notified of."""
    parts = [EFFECTS[effect] for effect in transition.effects]
    if transition.verb is not Verb.RENEW:
        parts = [binding.become(transition.target), *parts, "updated = clock.now"]
    return ", ".join(parts)


def by_a_person(transition: Transition, binding: Binding) -> str:
    """The assignments of a transition without the columns of the lease, which count only while the
    row is picked and which an operator may not write."""
    effects = tuple(effect for effect in transition.effects if effect is not Effect.FREE_LEASE)
    return sets(replace(transition, effects=effects), binding)


def leased(binding: Binding) -> str:
    """The row `j` is picked, so that its lease counts: a person may have queued it by hand, and the
    token of the old lease is still there.

    Behind coalesce the planner does not see the state. Statistics taken while nothing was picked
    would otherwise let it choose a scan of the backlog.
    """
    return f"coalesce({binding.is_in(TRANSITIONS[Verb.RENEW].sources)}, false)"


def guards(transition: Transition, binding: Binding) -> str:
    """The conditions of a transition."""
    conditions = [GUARDS[guard] for guard in transition.guards]
    if Guard.OWNED in transition.guards:
        conditions.append(leased(binding))
    else:
        conditions.insert(0, binding.is_in(transition.sources))
    return " and ".join(conditions)


def _in_fleet(columns: int) -> dict[str, str]:
    """The parts of a statement that takes a place and returns that many columns."""
    nulls = ", ".join(["null"] * columns)
    return {**_IN_FLEET, "refused": f"\nunion all\nselect {nulls} from clock where not admitted"}


def _literal(text: str | None) -> str:
    return "null::text" if text is None else f"'{text}'"


_MARKED = "set_config('enqueued.into', '{prefix}', true)"
"""Tells the trigger of notify_inserts.sql that this statement wakes workers by itself."""


class Statements(dict[str, Statement]):
    """Every statement that runs against one set of tables, by name."""

    def __init__(self, names: Names) -> None:
        self.binding = Binding(names)
        uncounted = UNCOUNTED.format(
            **self.binding.relations, newest=_NEWEST_TX, most=MOST_UNCOUNTED
        )
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
            "success": self.binding.word(Status.SUCCESSFUL),
            "on_conflict": _ON_CONFLICT["skip"],
            "needed": _NEEDED,
            "sleeps": _SLEEPS,
            "on_duty": _ON_DUTY.format(**self.binding.relations),
            "own_channel": _OWN_CHANNEL,
            "most_woken": _MOST_WOKEN,
            "marked": _MARKED.format(**self.binding.relations),
            "leased": leased(self.binding),
            "patience": PATIENCE,
            "since": SINCE,
            "steps": f"'{{{','.join(map(repr, STEPS))}}}'::double precision[]",
            "waiting": self.binding.is_in(TRANSITIONS[Verb.CLAIM].sources),
            "listed": LISTED,
            "most_held": str(MOST_HELD),
            "chosen": CHOSEN,
            "uncounted": uncounted,
            "most_uncounted": str(MOST_UNCOUNTED),
            "counts": _COUNTS.format(**self.binding.relations, uncounted=uncounted),
        }
        self.update((statement.name, statement) for statement in self._render_all())

    def names(self) -> list[str]:
        return sorted(self)

    def _fill(self, name: str, file: str, **parts: str) -> Statement:
        numbered = number(name, template(file).format(**{**self._common, **parts}))
        return replace(numbered, file=file)

    def _render_all(self) -> list[Statement]:
        special = [
            *(
                self._fill(f"enqueue:{word}", "insert", on_conflict=clause, skipped=_SKIPPED[word])
                for word, clause in _ON_CONFLICT.items()
            ),
            *(
                self._fill(f"enqueue_one:{word}", "insert_one", on_conflict=clause)
                for word, clause in _ON_CONFLICT.items()
            ),
            *(self._claim(row) for row in TRANSITIONS.values() if row.verb is Verb.CLAIM),
            self._claim(TRANSITIONS[Verb.CLAIM], CLAIM_IN_FLEET, _in_fleet(len(CLAIMED_VALUES))),
            self._lanes("lanes", Guard.NEVER_RECOVERED),
            self._lanes(LANES_IN_FLEET, Guard.NEVER_RECOVERED, _in_fleet(LANE_COLUMNS + 1)),
            self._lanes("lanes:recovered", Guard.RECOVERED),
            self._recovered_waiting(),
            self._upkeep_look(),
            self._of_claimable("oldest"),
            self._of_claimable("raise_priority"),
            self._of_claimable("explain_job"),
            self._of_claimable("explain_first"),
            self._of_claimable("doctor_plan"),
            self._recover(),
            self._requeue(),
            self._fill(
                "requeue_preview",
                "requeue_preview",
                held=self.binding.is_in(TRANSITIONS[Verb.REQUEUE].sources),
            ),
            self._edit(),
            self._move(),
            *(self._change(row) for row in TRANSITIONS.values() if _is_change(row)),
            self._complete_with_result(),
            self._of_holder("note_progress"),
            self._of_holder("payloads"),
            *(self._remove(row) for row in TRANSITIONS.values() if _is_removal(row)),
        ]
        rest = [file for file in roles() if file not in {each.file for each in special}]
        # The hidden twins come from files that also have a plain statement.
        hidden = [self._fill(f"{file}:hidden", file, seen=_SEEN_BY_FEW) for file in READING]
        return [*special, *hidden, *(self._fill(file, file) for file in rest)]

    def _claim(
        self, claim: Transition, name: str = "", places: Mapping[str, str] = _ALONE
    ) -> Statement:
        retire = RETIRE_UNCLAIMABLE
        kind = [GUARDS[guard] for guard in claim.guards if guard in _KINDS]
        capped = any("l.max_recoveries" in condition for condition in kind)
        return self._fill(
            name or claim.name,
            "claim",
            **places,
            claimable=self.binding.is_in(claim.sources),
            kind=" and ".join(kind),
            more_arrays=", (select :max_recoveries::integer[])" if capped else "",
            more_columns=", max_recoveries" if capped else "",
            spent=GUARDS[Guard.ATTEMPTS_SPENT],
            most=str(MOST_OF_A_LANE),
            claim=sets(claim, self.binding),
            retire=sets(retire, self.binding),
            retired=self.binding.word(retire.target),
            retire_reason=_literal(retire.reason),
        )

    def _lanes(self, name: str, kind: Guard, places: Mapping[str, str] = _ALONE) -> Statement:
        """Lanes of recovered jobs are found by the index that has only those."""
        narrow = f" and {GUARDS[kind]}" if kind is Guard.RECOVERED else ""
        claimable = self.binding.is_in(TRANSITIONS[Verb.CLAIM].sources)
        return self._fill(
            name, "lanes", claimable=f"{claimable} and {GUARDS[kind]}", narrow=narrow, **places
        )

    def _recovered_waiting(self) -> Statement:
        name = "recovered_waiting"
        return self._fill(
            name,
            name,
            claimable=self.binding.is_in(TRANSITIONS[Verb.CLAIM].sources),
            recovered=GUARDS[Guard.RECOVERED],
            suspect=GUARDS[Guard.RECOVERY_SPENT],
            most=str(MOST_OF_A_LANE),
        )

    def _upkeep_look(self) -> Statement:
        name = "upkeep_look"
        return self._fill(
            name,
            name,
            claimable=self.binding.is_in(TRANSITIONS[Verb.CLAIM].sources),
            unharmed=GUARDS[Guard.NEVER_RECOVERED],
            recovered=GUARDS[Guard.RECOVERED],
        )

    def _of_claimable(self, name: str) -> Statement:
        """A statement about jobs that wait to be claimed."""
        return self._fill(name, name, claimable=self.binding.is_in(TRANSITIONS[Verb.CLAIM].sources))

    def _recover(self) -> Statement:
        recover, retire = TRANSITIONS[Verb.RECOVER], RETIRE_STALE
        return self._fill(
            Verb.RECOVER,
            "recover",
            stale=GUARDS[Guard.STALE],
            least=str(LEAST_RECOVERIES_CAP),
            excused=GUARDS[Guard.EXCUSED],
            owned=GUARDS[Guard.OWNED],
            recover=sets(recover, self.binding),
            excuse=sets(RECOVER_OUTAGE, self.binding),
            retire=sets(retire, self.binding),
            recovered=self.binding.word(recover.target),
            retired=self.binding.word(retire.target),
            recover_reason=_literal(recover.reason),
            excuse_reason=_literal(RECOVER_OUTAGE.reason),
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

    def _move(self) -> Statement:
        return self._fill(
            Verb.MOVE,
            "move",
            waiting=self.binding.is_in(MOVE_WAITING.sources),
            held=self.binding.is_in(MOVE_HELD.sources),
            stale=GUARDS[Guard.STALE],
            move_waiting=by_a_person(MOVE_WAITING, self.binding),
            move_leased=by_a_person(MOVE_LEASED, self.binding),
            move_held=by_a_person(MOVE_HELD, self.binding),
            target=self.binding.word(MOVE_LEASED.target),
        )

    def _change(self, row: Transition) -> Statement:
        file = "renew" if row.verb is Verb.RENEW else "finish" if row.leaves else "return_to_queue"
        return self._fill(
            row.name,
            file,
            guards=guards(row, self.binding),
            sets=sets(row, self.binding),
            target=self.binding.word(row.target),
            reason=_literal(row.reason),
            claimable_now=f"status = {self.binding.word(Status.QUEUED)}",
        )

    def _complete_with_result(self) -> Statement:
        row = TRANSITIONS[Verb.COMPLETE]
        return self._fill(
            WITH_RESULT,
            "finish_with_result",
            guards=guards(row, self.binding),
            target=self.binding.word(row.target),
            reason=_literal(row.reason),
        )

    def _of_holder(self, name: str) -> Statement:
        """A statement for holders alone, and only while their leases count, as for a renewal."""
        return self._fill(name, name, guards=guards(TRANSITIONS[Verb.RENEW], self.binding))

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
