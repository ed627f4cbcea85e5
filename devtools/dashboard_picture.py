"""The picture of the dashboard in the docs: an invented state, drawn by the real view.

`python -m devtools.dashboard_picture FILE.svg` draws it.
"""

from __future__ import annotations

import io
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console

from holdfast.cli.dashboard_render import render
from holdfast.lifecycle import Status
from holdfast.models import JobId
from holdfast.monitor.snapshot import (
    EntrypointRow,
    FailureRow,
    PauseRow,
    RunningRow,
    ScheduleRow,
    Snapshot,
    WorkerRow,
)

WIDTH = 96
_AT = datetime(2026, 3, 9, 10, 30, 12, tzinfo=UTC)
_LEASE = timedelta(seconds=30)
_WEB_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def draw(file: str | Path) -> None:
    """Write the picture as SVG."""
    screen = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    screen.print(render(scene(), WIDTH))
    # The id is part of the file: a fixed one keeps the picture the same when nothing changed.
    picture = screen.export_svg(title="holdfast dashboard", unique_id="holdfast-dashboard")
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    # Without the web font: a picture must not load anything when it is shown.
    Path(file).write_text(_WEB_FONT.sub("", picture), encoding="utf-8")


def scene() -> Snapshot:
    """A busy morning with one poisoned import."""
    return Snapshot(
        at=_AT,
        entrypoints=(
            EntrypointRow("send_email", 1_204, 312, 0, _ago(1.4), 48_211, 3),
            EntrypointRow("resize_image", 86, 24, 0, _ago(0.3), 9_240),
            EntrypointRow("import_file", 12, 2, 3, _ago(75), 418, 1),
            EntrypointRow("charge_card", 0, 4, 1, None, 2_077),
            EntrypointRow("nightly_report", 1),
        ),
        running=(
            _running(41_877, "import_file", "web-1:4120:9f3c", 48.2, 9.1, 0.62),
            _running(42_019, "import_file", "web-2:3991:07ab", 12.6, 2.6, 0.18),
            _running(42_103, "resize_image", "web-1:4120:9f3c", 1.9, 1.9),
            _running(42_110, "charge_card", "web-2:3991:07ab", 0.21, 0.21),
        ),
        failures=(
            _failure(41_902, "import_file", Status.FAILED, "stale claim recovered", 31),
            _failure(40_018, "send_email", Status.EXCEPTION, "SMTPRecipientsRefused: 550", 190),
            _failure(39_554, "charge_card", Status.FAILED, "CardError: expired card", 640),
        ),
        workers=(
            WorkerRow("web-1:4120:9f3c", "running", 171, 500, _ago(96_400), _ago(4)),
            WorkerRow("web-2:3991:07ab", "running", 169, 500, _ago(96_380), _ago(7)),
            WorkerRow("web-3:1207:55e0", "running", 2, 500, _ago(3_600), _ago(41)),
        ),
        schedules=(
            _schedule("clean_sessions", "*/5 * * * *", "UTC", 288, 12),
            _schedule("nightly_report", "0 2 * * *", "Europe/Madrid", 52_188, 34_212),
        ),
        minutes=(
            *(1180, 1204, 1210, 1199, 1650, 1902, 2210, 2480, 2302, 2011),
            *(1840, 1720, 1698, 1710, 1705, 1120, 340, 280, 1320, 2890),
            *(3105, 2950, 2480, 2204, 2101, 2050, 1988, 2011, 2032, 486),
        ),
        pauses=(PauseRow("nightly_report", "warehouse is down", "cli:mara@ops", None),),
        rates=(
            *(33.0, 35.0, 34.0, 37.0, 31.0, 30.0, 36.0, 41.0, 47.0, 44.0),
            *(42.0, 39.0, 12.0, 4.0, 9.0, 52.0, 61.0, 55.0, 48.0, 43.0),
            *(40.0, 38.0, 39.0, 41.0, 37.0, 36.0, 38.0, 40.0, 42.0, 41.0),
        ),
    )


def _ago(seconds: float) -> datetime:
    return _AT - timedelta(seconds=seconds)


def _running(
    job: int,
    entrypoint: str,
    worker: str,
    held: float,
    heartbeat: float,
    progress: float | None = None,
) -> RunningRow:
    return RunningRow(JobId(job), entrypoint, worker, _ago(held), _ago(heartbeat), _LEASE, progress)


def _failure(job: int, entrypoint: str, status: Status, error: str, ago: float) -> FailureRow:
    return FailureRow(JobId(job), entrypoint, status, error, _ago(ago))


def _schedule(
    name: str, expression: str, timezone: str, until_next: float, since_last: float
) -> ScheduleRow:
    return ScheduleRow(name, expression, timezone, False, _ago(-until_next), _ago(since_last))


if __name__ == "__main__":
    draw(sys.argv[1])
