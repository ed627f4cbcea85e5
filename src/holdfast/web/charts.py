"""Charts as SVG strings, without script or style attributes.

Every chart fills its column. Lines live in an inner <svg> that is stretched; text and rules are
placed in per cent outside of it, so that letters are never distorted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, log10

from markupsafe import Markup

from holdfast.models import Progress

_TOP = 8
_LABELS = 20
"""Pixels above a plot, and below it for the labels of the time axis."""
_APART = 14
_STEPS = (1, 2, 2.5, 5, 10)

BELOW = ("held", "exception", "retry")
"""What did not go well, from the line downwards."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """What ended in one stretch of time."""

    at: str
    successful: int = 0
    retry: int = 0
    exception: int = 0
    held: int = 0

    def of(self, key: str) -> int:
        return int(getattr(self, key))

    @property
    def below(self) -> int:
        return sum(self.of(key) for key in BELOW)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds that half, 95 % and 99 % of all waited at most; None where nothing started."""

    at: str
    p50: float | None
    p95: float | None
    p99: float | None


Labels = Sequence[tuple[float, str]]


def ticks(most: float, count: int) -> tuple[float, list[float]]:
    """The end of a scale from 0, and its round steps."""
    raw = max(most, count) / count
    power = 10 ** int(log10(raw)) if raw >= 1 else 1
    step = next(part * power for part in _STEPS if part * power >= raw)
    whole = ceil(step) if step < 10 else step
    return whole * count, [whole * n for n in range(1, count + 1)]


def throughput(buckets: Sequence[Bucket], labels: Labels, title: str, height: int = 224) -> Markup:
    """Above the line what went well; below it, on a scale of its own, what did not."""
    n = len(buckets)
    floor = height - _LABELS
    below = max(bucket.below for bucket in buckets)
    zero = round(_TOP + (floor - _TOP) * 0.62)
    up_max, up_ticks = ticks(max(bucket.successful for bucket in buckets), 3)
    down_max, down_ticks = ticks(below, 2)

    def up(value: float) -> float:
        return zero - value / up_max * (zero - _TOP)

    def down(value: float) -> float:
        return zero + value / down_max * (floor - zero - 4)

    well = [up(bucket.successful) for bucket in buckets]
    left = [(up(v), f"{v:,.0f}") for v in up_ticks] + [(float(zero), "0")]
    left += [(down(v), f"{v:,.0f}") for v in down_ticks]
    lines = "".join(_grid(up(v)) for v in up_ticks) + "".join(_grid(down(v)) for v in down_ticks)
    between = (down(down_ticks[0]) + down(down_ticks[1])) / 2 + 4
    parts = [
        '<div class="plot">',
        _gutter("y", height, left),
        _open("chart", height, title, _say(buckets)),
        lines,
        _stretched(n, height),
        f'<path class="a-successful" d="{_band(well, [float(zero)] * n)}"/>',
        *_bands(buckets, down, float(zero)),
        f'<path class="l-successful" d="{_line(well)}"/></svg>',
        f'<line class="zero" x1="0" x2="100%" y1="{zero}.5" y2="{zero}.5"/>',
        f'<text class="halo" x="4" y="{between:.1f}">not successful, enlarged</text>',
        _time_axis(labels, n, height - 4),
        *(_hit(i, n, floor, _hover(bucket)) for i, bucket in enumerate(buckets)),
        "</svg>",
        _gutter("now", height, [(well[-1], f"{buckets[-1].successful:,} now")]),
        "</div>",
    ]
    return Markup("".join(parts))  # noqa: S704 - numbers, and texts that were escaped


def _bands(buckets: Sequence[Bucket], down: Callable[[float], float], zero: float) -> list[str]:
    sums, edge, out = [0] * len(buckets), [zero] * len(buckets), []
    for key in BELOW:
        sums = [total + bucket.of(key) for total, bucket in zip(sums, buckets, strict=True)]
        ys = [down(total) for total in sums]
        out.append(f'<path class="a-{key}" d="{_runs(ys, edge)}"/>')
        edge = ys
    return out


def _hover(bucket: Bucket) -> str:
    return (
        f"{bucket.at}  {bucket.successful:,} successful, {bucket.retry:,} back in the queue, "
        f"{bucket.exception:,} failed, {bucket.held:,} held"
    )


def _say(buckets: Sequence[Bucket]) -> str:
    total = {key: sum(b.of(key) for b in buckets) for key in ("successful", *BELOW)}
    return (
        f"{total['successful']:,} leases ended successfully, {total['retry']:,} with the job back "
        f"in the queue, {total['exception']:,} in a failure, {total['held']:,} in a hold. The same "
        f"figures are in the table below."
    )


_LOW, _HIGH = 0.001, 100_000.0
_TENS = ((0.001, "1 ms"), (0.01, "10 ms"), (0.1, "100 ms"), (1, "1 s"), (10, "10 s"))
_MORE_TENS = ((100, "2 min"), (1000, "17 min"), (10_000, "3 h"), (100_000, "28 h"))


def waiting(
    rows: Sequence[Percentiles], labels: Labels, ends: Sequence[tuple[str, str]], title: str
) -> Markup:
    """Percentiles on a scale of tens. The lines differ in weight and dash, and have names."""
    height, n = 152, len(rows)
    floor = height - _LABELS
    values = [v for row in rows for v in (row.p50, row.p95, row.p99) if v is not None]
    marks = [*_TENS, *_MORE_TENS]
    high = next((v for v, _ in marks if v >= max(values, default=1.0)), _HIGH)
    low = max((v for v, _ in marks if v <= min(values, default=_LOW)), default=_LOW)
    low = min(low, high / 100)

    def y(value: float) -> float:
        part = (log10(min(max(value, low), high)) - log10(low)) / (log10(high) - log10(low))
        return floor - part * (floor - _TOP)

    shown = [(v, text) for v, text in marks if low <= v <= high][-5:]
    last = next((row for row in reversed(rows) if row.p50 is not None), rows[-1])
    right = [
        (y(value), f"{name} {text}")
        for name, text in ends
        if (value := getattr(last, name)) is not None
    ]
    parts = [
        '<div class="plot">',
        _gutter("y", height, [(y(v), text) for v, text in shown]),
        _open(
            "chart",
            height,
            title,
            "From due to claimed. Scale in powers of ten. The table below has the same figures.",
        ),
        *(_grid(y(v)) for v, _ in shown),
        _stretched(n, height),
        *(
            f'<path class="l-{name}" d="{_broken([getattr(row, name) for row in rows], y)}"/>'
            for name in ("p99", "p95", "p50")
        ),
        "</svg>",
        _time_axis(labels, n, height - 4),
        *(_hit(i, n, floor, _say_waits(row)) for i, row in enumerate(rows)),
        "</svg>",
        _gutter("now", height, right),
        "</div>",
    ]
    return Markup("".join(parts))  # noqa: S704 - numbers, and texts that were escaped


def _say_waits(row: Percentiles) -> str:
    if row.p50 is None or row.p95 is None or row.p99 is None:
        return f"{row.at}  nothing started"
    return f"{row.at}  half within {row.p50:.3g} s, 95 % {row.p95:.3g} s, 99 % {row.p99:.3g} s"


def spark(values: Sequence[int], title: str, kind: str = "bad", step: int = 4) -> Markup:
    """Bars, because they count. The highest fills the height; the title says how many that is."""
    height, top, n = 20, max(values, default=0) or 1, len(values)
    said = escape(title)
    bars = (
        f'<rect class="{kind}" x="{i * step}" y="{height - h:.1f}" width="{step - 1}" '
        f'height="{h:.1f}"/>'
        for i, value in enumerate(values)
        if (h := max(2.0, value / top * (height - 1)) if value else 0.0)
    )
    return Markup(  # noqa: S704 - numbers, and texts that were escaped
        f'<svg class="spark" viewBox="0 0 {n * step} {height}" preserveAspectRatio="none" '
        f'role="img" aria-label="{said}"><title>{said}</title>{"".join(bars)}'
        f'<line class="base" x1="0" x2="{n * step}" y1="{height - 0.5}" y2="{height - 0.5}"/></svg>'
    )


def bar(part: float, whole: float, title: str) -> Markup:
    """How much of something is used."""
    share = min(100.0, 100 * part / whole) if whole else 0.0
    return Markup(  # noqa: S704 - numbers, and texts that were escaped
        f'<svg class="bar" role="img" aria-label="{escape(title)}"><rect class="bg" width="100%" '
        f'height="100%" rx="2"/><rect class="{"fg-full" if share >= 95 else "fg"}" '
        f'width="{share:.1f}%" height="100%" rx="2"/></svg>'
    )


def far(progress: Progress) -> Markup:
    """How far a job is: a bar, the share, and what its handler says."""
    share = f"{progress.fraction:.0%}".replace("%", " %")
    said = Markup(' <span class="quiet">{}</span>').format(progress.message or "")
    drawn = bar(progress.fraction, 1.0, f"{share} done")
    return Markup('<span class="far">{}<b>{}</b>{}</span>').format(drawn, share, said)


def _open(kind: str, height: int, title: str, description: str) -> str:
    return (
        f'<svg class="{kind}" height="{height}" role="img" aria-label="{escape(title)}. '
        f'{escape(description)}">'
    )


def _stretched(n: int, height: int) -> str:
    return (
        f'<svg viewBox="0 0 {max(1, n - 1)} {height}" preserveAspectRatio="none" width="100%" '
        f'height="{height}">'
    )


def _grid(y: float) -> str:
    return f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>'


def _hit(i: int, n: int, floor: int, title: str) -> str:
    width = 100 / n
    return (
        f'<rect class="hit" x="{i * width:.3f}%" y="{_TOP}" width="{width:.3f}%" '
        f'height="{floor - _TOP}"><title>{escape(title)}</title></rect>'
    )


def _time_axis(labels: Labels, n: int, y: int) -> str:
    out = []
    for k, (i, text) in enumerate(labels):
        share = 100 * i / max(1, n - 1)
        anchor = "start" if share < 3 else "end" if share > 97 else "middle"
        kind = ' class="tick-s"' if k % 2 else ""
        out.append(
            f'<text{kind} x="{share:.2f}%" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
        )
    return "".join(out)


def _gutter(kind: str, height: int, texts: Iterable[tuple[float, str]]) -> str:
    """A strip of labels beside a plot, kept apart from each other."""
    x, anchor = ("100%", "end") if kind == "y" else ("0", "start")
    last, out = -99.0, []
    for y, text in sorted(texts):
        last = max(y, last + _APART)
        out.append(f'<text x="{x}" y="{last + 4:.1f}" text-anchor="{anchor}">{escape(text)}</text>')
    return f'<svg class="chart {kind}" height="{height}" aria-hidden="true">{"".join(out)}</svg>'


def _line(ys: Sequence[float]) -> str:
    return "M" + " L".join(f"{i},{y:.2f}" for i, y in enumerate(ys))


def _broken(values: Sequence[float | None], y: Callable[[float], float]) -> str:
    """A line with gaps where there is no value; a value alone is a short stroke."""
    out, drawing = [], False
    for i, value in enumerate(values):
        if value is None:
            drawing = False
            continue
        at = f"{y(value):.2f}"
        alone = not drawing and (i + 1 == len(values) or values[i + 1] is None)
        out.append(
            f"M{i - 0.3},{at} L{i + 0.3},{at}" if alone else f"{'L' if drawing else 'M'}{i},{at}"
        )
        drawing = True
    return " ".join(out)


def _band(upper: Sequence[float], lower: Sequence[float]) -> str:
    forth = " L".join(f"{i},{y:.2f}" for i, y in enumerate(upper))
    back = " L".join(f"{i},{lower[i]:.2f}" for i in reversed(range(len(lower))))
    return f"M{forth} L{back}Z"


def _runs(lower: Sequence[float], upper: Sequence[float]) -> str:
    """The band between two lines, where it has a height: no outline must run along nothing."""
    n, out, i = len(lower), [], 0
    while i < n:
        if lower[i] == upper[i]:
            i += 1
            continue
        first = max(0, i - 1)
        while i < n and lower[i] != upper[i]:
            i += 1
        last = min(n - 1, i)
        forth = " L".join(f"{k},{lower[k]:.2f}" for k in range(first, last + 1))
        back = " L".join(f"{k},{upper[k]:.2f}" for k in range(last, first - 1, -1))
        out.append(f"M{forth} L{back}Z")
    return " ".join(out)
