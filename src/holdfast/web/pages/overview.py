"""How things stand: one sentence, six figures, two charts, and what needs a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any

from markupsafe import Markup

from holdfast.breaker import Breaker, BreakerState
from holdfast.histogram import Histogram, percentile
from holdfast.lifecycle import Status
from holdfast.models import Pause, WorkerInfo
from holdfast.monitor import pages
from holdfast.monitor.doctor import Finding, Severity
from holdfast.monitor.failures import Group, held_groups
from holdfast.web.charts import BELOW, Bucket, Percentiles, bar, spark, throughput, waiting
from holdfast.web.pages.schedules import overdue
from holdfast.web.visit import Page, Visit
from holdfast.web.words import capped, coarse, cut, rounded, span, stopped


@dataclass(frozen=True, slots=True)
class Range:
    """How far back the charts go, and how they are divided."""

    name: str
    words: str
    length: timedelta
    width: timedelta
    label_every: timedelta
    label: str


RANGES = {
    "1h": Range(
        "1 h", "the last hour", timedelta(hours=1), timedelta(minutes=1), timedelta(minutes=10),
        "%H:%M",
    ),
    "24h": Range(
        "24 h", "the last day", timedelta(days=1), timedelta(minutes=15), timedelta(hours=4),
        "%H:%M",
    ),
    "7d": Range(
        "7 d", "the last week", timedelta(days=7), timedelta(hours=2), timedelta(days=1), "%-d %b"
    ),
}  # fmt: skip

_MOST_ASKS = 5
_MOST_ALIKE = 2
"""Entrypoints without a worker that are reported one by one."""
_TOLD = ("no_worker", "held", "worker_silent")
"""Findings of the doctor that this page tells in words of its own."""
_MOST_ROWS = 6
_SPARKS = 12
_SPARK = timedelta(minutes=5)

_SERIES = {
    Status.SUCCESSFUL: "successful",
    Status.QUEUED: "retry",
    Status.EXCEPTION: "exception",
    Status.FAILED: "held",
}


@dataclass(frozen=True, slots=True)
class Ask:
    """What needs a person, and where to see to it."""

    shape: str
    tone: str
    head: str
    rest: str
    words: str
    link: str
    href: str


_NOTHING, _EMPTY = pages.Waiting(), Markup("")


@dataclass(frozen=True, slots=True)
class Trouble:
    """An entrypoint, and what is wrong with it."""

    name: str
    shape: str = "queued"
    tone: str = "queued"
    why: str = ""
    weight: int = 0
    waiting: pages.Waiting = _NOTHING
    oldest: datetime | None = None
    running: int = 0
    paused: bool = False
    failed: int = 0
    spark: Markup = _EMPTY


@dataclass(frozen=True, slots=True)
class Facts:
    """What was read."""

    waiting: dict[str, pages.Waiting]
    oldest: dict[str, datetime]
    running: list[pages.Running]
    groups: list[Group]
    workers: list[WorkerInfo]
    breakers: list[Breaker]
    rates: list[pages.Rate]
    rates_of: list[pages.Rate]
    waits: dict[datetime, Histogram]
    pauses: list[Pause]


async def read(visit: Visit, chosen: Range) -> Facts:
    look = visit.look
    return Facts(
        await pages.waiting(look),
        await pages.oldest(look),
        await pages.running(look),
        await held_groups(look, recent=True) if visit.nav.held else [],
        await pages.workers(look),
        await pages.breakers(look) if visit.nav.breakers else [],
        await pages.rates(look, chosen.length, chosen.width),
        await pages.rates_of(look, _SPARK * _SPARKS, _SPARK),
        await pages.waits(look, chosen.length, chosen.width),
        await pages.pauses(look),
    )


async def load(visit: Visit) -> dict[str, Any]:
    name = visit.params.get("range", "1h")
    chosen = RANGES.get(name, RANGES["1h"])
    facts = await read(visit, chosen)
    series = buckets(facts.rates, chosen, visit.now)
    trouble = troubles(facts, visit.now)
    asks = _asks(visit, facts, trouble)
    drawn = whole(series)
    axis = [label for label in labels(chosen, visit.now) if label[0] < len(drawn)]
    due = sorted(
        (s for s in await pages.schedules(visit.look) if not s.paused), key=lambda s: s.next_run
    )
    waits = percentiles(facts, chosen, visit.now, len(drawn))
    total = {key: sum(bucket.of(key) for bucket in series) for key in ("successful", *BELOW)}
    ended = total["successful"] + total["exception"] + total["held"]
    return {
        "ranges": RANGES,
        "chosen": chosen,
        "series": series,
        "total": total,
        "share": 100 * (total["exception"] + total["held"]) / ended if ended else None,
        "minutes": chosen.length / timedelta(minutes=1),
        "chart": throughput(drawn, axis, f"Throughput in {chosen.words}"),
        "waits": _waits(waits, chosen, axis),
        "waits_series": waits,
        "asks": asks[:_MOST_ASKS],
        "more_asks": max(0, len(asks) - _MOST_ASKS),
        "sentence": _sentence(visit, asks, facts),
        "trouble": [row for row in trouble if row.weight][:_MOST_ROWS],
        "calm": [row for row in trouble if not row.weight][:_MOST_ROWS],
        "entrypoints": len(trouble),
        "figures": _figures(visit, facts),
        "groups_": facts.groups,
        "breakers": [b for b in facts.breakers if b.state is not BreakerState.CLOSED],
        "pauses": facts.pauses,
        "workers": [(w, _slots(w), pages.silent(w, visit.now)) for w in facts.workers[:8]],
        "due": due[:5],
        "late": overdue(due, visit.now),
    }


def buckets(rates: Sequence[pages.Rate], chosen: Range, now: datetime) -> list[Bucket]:
    """One for each stretch of the range, the running one last."""
    counts: Counter[tuple[int, str]] = Counter()
    n = chosen.length // chosen.width
    end = _floor(now, chosen.width)
    for rate in rates:
        if rate.status in _SERIES:
            counts[(end - rate.at) // chosen.width, _SERIES[rate.status]] += rate.count
    return [
        Bucket(
            _name(end - ago * chosen.width, chosen),
            *(counts[ago, key] for key in ("successful", "retry", "exception", "held")),
        )
        for ago in reversed(range(n))
    ]  # fmt: skip


def _name(at: datetime, chosen: Range) -> str:
    return f"{at:%H:%M}" if chosen.length <= timedelta(days=1) else f"{at:%-d %b %H:%M}"


def whole(series: Sequence[Bucket]) -> Sequence[Bucket]:
    """Without the running stretch, which would look like a fall. The first of all is shown."""
    *before, _ = series
    return before if any(each.successful or each.below for each in before) else series


def percentiles(facts: Facts, chosen: Range, now: datetime, n: int) -> list[Percentiles]:
    """The first `n` stretches of the range; empty while nothing was counted."""
    if not facts.waits:
        return []
    end, times = _floor(now, chosen.width), range(chosen.length // chosen.width)
    starts = [end - ago * chosen.width for ago in reversed(times)]
    return [_percentiles(_name(at, chosen), facts.waits.get(at, ())) for at in starts[:n]]


def _waits(
    rows: Sequence[Percentiles], chosen: Range, axis: list[tuple[float, str]]
) -> Markup | None:
    """The chart of waiting times."""
    if not rows:
        return None
    last = next((row for row in reversed(rows) if row.p50 is not None), rows[-1])
    ends = [(name, span(getattr(last, name))) for name in ("p99", "p95", "p50")]
    return waiting(rows, axis, ends, f"Waiting time in {chosen.words}")


def _percentiles(name: str, counts: Histogram) -> Percentiles:
    def at(fraction: float) -> float | None:
        found = percentile(counts, fraction)
        return None if found is None else found.total_seconds()

    return Percentiles(name, at(0.5), at(0.95), at(0.99))


def labels(chosen: Range, now: datetime) -> list[tuple[float, str]]:
    """Round instants along the axis."""
    end = _floor(now, chosen.width)
    start = end - chosen.length + chosen.width
    first = _floor(start + chosen.label_every, chosen.label_every)
    found, at = [], first
    while at <= end:
        found.append(((at - start) / chosen.width, f"{at.astimezone(UTC):{chosen.label}}"))
        at += chosen.label_every
    return found


def _floor(at: datetime, width: timedelta) -> datetime:
    seconds = width.total_seconds()
    return datetime.fromtimestamp(at.timestamp() // seconds * seconds, UTC)


def troubles(facts: Facts, now: datetime) -> list[Trouble]:
    """Every entrypoint that is known, those in most trouble first."""
    running = Counter[str]()
    for row in facts.running:
        running[row.entrypoint] += row.count
    held = Counter[str]()
    for group in facts.groups:
        held[group.entrypoint] += group.count
    served = pages.served(facts.workers, now)
    failures = _failures(facts.rates_of, now)
    stopped = {pause.name for pause in facts.pauses} - {""}
    behind = pages.behind(facts.workers)
    shut = {
        name: breaker
        for breaker in facts.breakers
        if breaker.state is not BreakerState.CLOSED
        for name in behind.get(breaker.name, ())
    }
    names = {*facts.waiting, *running, *held, *failures, *served, *stopped}
    found = [
        _judged(
            Trouble(
                name,
                waiting=facts.waiting.get(name, pages.Waiting()),
                oldest=facts.oldest.get(name),
                running=running[name],
                failed=sum(failures.get(name, ())),
                spark=_spark(failures.get(name, [0] * _SPARKS)),
            ),
            held[name],
            name in served,
            now,
            next((g.kind for g in facts.groups if g.entrypoint == name), ""),
            _stopped(pages.paused(facts.pauses, name), shut.get(name)),
        )
        for name in names
    ]
    return sorted(found, key=lambda row: (-row.weight, row.name))


def _stopped(pause: Pause | None, breaker: Breaker | None) -> dict[str, Any] | None:
    """What keeps all jobs of an entrypoint from starting, as the fields of its line."""
    if pause is not None:
        why = f"paused by {pause.actor or 'unknown'}: {pause.reason}"
        return {"shape": "canceled", "tone": "queued", "why": why, "weight": 3000, "paused": True}
    if breaker is not None:
        why = f"breaker {breaker.name} is {breaker.state.replace('_', ' ')}"
        return {"shape": "open", "tone": "risk", "why": why, "weight": 3500}
    return None


def _judged(
    row: Trouble, held: int, served: bool, now: datetime, kind: str, stop: dict[str, Any] | None
) -> Trouble:
    if stop is not None:
        return replace(row, **stop)
    late = now - row.oldest if row.oldest else timedelta(0)
    if not served and (row.waiting.due or row.waiting.later):
        return replace(row, shape="warn", tone="warn", why="no live worker serves it", weight=4000)
    if held:
        about = f", {kind}" if kind else ""
        return replace(
            row,
            shape="held",
            tone="held",
            why=f"{held:,} held{about}",
            weight=1000 + min(held, 999),
        )
    if late > timedelta(minutes=1):
        return replace(
            row,
            why=f"the oldest waits for {coarse(late)}",
            weight=int(min(900, 1 + late.seconds / 60)),
        )
    if row.failed:
        return replace(
            row, shape="exception", tone="exception", why=f"{row.failed:,} failed in the last hour",
            weight=1,
        )  # fmt: skip
    return replace(row, shape="successful", tone="successful", why="keeps up")


def _failures(rates: Sequence[pages.Rate], now: datetime) -> dict[str, list[int]]:
    """Failures and holds of the last hour by entrypoint, in bars."""
    end, found = _floor(now, _SPARK), dict[str, list[int]]()
    for rate in rates:
        bars = found.setdefault(rate.entrypoint, [0] * _SPARKS)
        ago = (end - rate.at) // _SPARK
        if rate.status in (Status.EXCEPTION, Status.FAILED) and 0 <= ago < _SPARKS:
            bars[_SPARKS - 1 - ago] += rate.count
    return found


def _spark(bars: Sequence[int]) -> Markup:
    most = max(bars)
    return spark(
        bars, f"{sum(bars)} failed or held in the last hour, at most {most} in 5 minutes", step=8
    )


def _slots(worker: WorkerInfo) -> Markup:
    return bar(
        worker.running, worker.concurrency, f"{worker.running} of {worker.concurrency} slots"
    )


def _figures(visit: Visit, facts: Facts) -> dict[str, Any]:
    due = sum(row.due for row in facts.waiting.values())
    later = sum(row.later for row in facts.waiting.values())
    sampled = any(row.cut for row in facts.waiting.values())
    running = sum(row.count for row in facts.running)
    live = [worker for worker in facts.workers if not pages.silent(worker, visit.now)]
    oldest = min(facts.oldest.items(), key=lambda item: item[1], default=None)
    if sampled:
        due = max(due, visit.nav.live - running - visit.nav.held - later)
    return {
        "due": rounded(due) if sampled else due,
        "about": sampled,
        "later": f"{later:,}+" if sampled else f"{later:,}",
        "running": running,
        "slots": sum(worker.concurrency for worker in live),
        "workers": len(live),
        "silent": len(facts.workers) - len(live),
        "oldest": oldest,
    }


def _asks(visit: Visit, facts: Facts, trouble: Sequence[Trouble]) -> list[Ask]:
    url, found = visit.address.url, []
    held = sum(group.count for group in facts.groups)
    if held:
        first = facts.groups[0]
        name = cut(first.entrypoint, 40)
        share = stopped(f"{first.count:,} by {first.kind or 'one error'} in {name}")
        n = len(facts.groups)
        groups = f" in {n} group{'s' if n > 1 else ''}"
        verb = "jobs are" if held > 1 else "job is"
        found.append(
            Ask("held", "held", f"{held:,} {verb} held,", groups, share, "Review", url("/failures"))
        )
    for breaker in facts.breakers:
        if breaker.state is BreakerState.OPEN:
            found.append(_ask_breaker(breaker, visit, facts))
    alone = [row for row in trouble if row.shape == "warn"]
    if len(alone) > _MOST_ALIKE:
        found.append(_ask_workers(alone, visit))
    else:
        found += [_ask_worker(row, facts, visit) for row in alone]
    return [*found, *(_ask_doctor(each, visit) for each in _findings(visit))]


def _findings(visit: Visit) -> list[Finding]:
    return [each for each in visit.site.checkup.findings if each.check not in _TOLD]


def _ask_doctor(finding: Finding, visit: Visit) -> Ask:
    head, _, rest = finding.finding.partition(": ")
    head, rest = head[:1].upper() + head[1:], f"{rest[:1].upper()}{rest[1:]}." if rest else ""
    tone = "risk" if finding.severity is Severity.ERROR else "warn"
    return Ask("warn", tone, head, "", rest, "Doctor", visit.address.url("/system"))


def _ask_breaker(breaker: Breaker, visit: Visit, facts: Facts) -> Ask:
    if breaker.forced:
        words = f"Held open by {breaker.actor}{f': {breaker.reason}' if breaker.reason else ''}."
    else:
        again = breaker.tries_again_at
        words = "Its next job is a probe."
        if again is not None and again > visit.now:
            words = f"It tries again at {again:%H:%M:%S}."
    names = pages.behind(facts.workers).get(breaker.name, [])
    waits = [(name, facts.waiting[name].due) for name in names if name in facts.waiting]
    if waits:
        count = capped(sum(due for _, due in waits), pages.SAMPLE)
        words += f" {count} jobs of {', '.join(cut(name) for name, _ in waits[:2])} wait for it."
    else:
        words += " Its jobs wait and spend no attempt."
    return Ask(
        "open", "risk", f"Breaker {breaker.name} is open", "", words, "Breakers",
        visit.address.url("/breakers"),
    )  # fmt: skip


def _ask_worker(row: Trouble, facts: Facts, visit: Visit) -> Ask:
    names = sorted({name for worker in facts.workers for name in worker.entrypoints})
    near = get_close_matches(row.name, names, n=1)
    count = row.waiting.due + row.waiting.later
    words = f"{capped(count, pages.SAMPLE)} {'job waits' if count == 1 else 'jobs wait'}"
    if row.oldest:
        words += f", the oldest {coarse(visit.now - row.oldest)}"
    words += f". Nearest name: {near[0]}." if near else "."
    return Ask(
        "warn", "warn", f"{cut(row.name, 40)} has no worker", "", words, "Jobs",
        visit.address.url("/jobs", entrypoint=row.name),
    )  # fmt: skip


def _ask_workers(rows: Sequence[Trouble], visit: Visit) -> Ask:
    count = sum(row.waiting.due + row.waiting.later for row in rows)
    names = ", ".join(cut(row.name) for row in rows[:2])
    words = f"{capped(count, pages.SAMPLE)} jobs wait: those of {names} and {len(rows) - 2} more."
    return Ask(
        "warn", "warn", f"{len(rows)} entrypoints have no worker", "", words, "Entrypoints",
        visit.address.url("/entrypoints"),
    )  # fmt: skip


_NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")


def _sentence(visit: Visit, asks: Sequence[Ask], facts: Facts) -> tuple[str, str]:
    n = len(asks)
    if not visit.nav.live and not facts.rates:
        return "Nothing has been enqueued yet.", "What you enqueue appears here within a second."
    head = "All is well."
    if n:
        count = _NUMBERS[n] if n < len(_NUMBERS) else str(n)
        head = f"{count} thing{'s need' if n > 1 else ' needs'} a person."
    oldest = min(facts.oldest.values(), default=None)
    rest = "The rest keeps up" if n else "Workers keep up"
    if oldest is None:
        return head, f"{rest}: no job that is due waits."
    late = visit.now - oldest
    if late < timedelta(seconds=10):
        return head, f"{rest}: the oldest job has waited for {coarse(late)}."
    return head, f"The oldest job that is due has waited for {coarse(late)}."


PAGE = Page("Overview", "/", "overview.html", load, group=1, examined=True)
