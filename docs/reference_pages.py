"""The pages of reference that are read from the code: the command, the metrics, the settings."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import typer

from holdfast import Holdfast
from holdfast.app import HoldfastOptions
from holdfast.cli import app
from holdfast.service.stop import EXIT_BLOCKED
from holdfast.settings import MAX_PAYLOAD, SHORTEST_POLL, Retention, WorkerSettings
from holdfast.telemetry.prometheus import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_CODE = re.compile(r"(?<![\w`-])(--[a-z][a-z-]*|[A-Z]+_[A-Z_]+)(?![\w`=])")
"""An option or a variable in a help text, which the terminal shows without marks."""


def pages() -> Iterator[tuple[str, str]]:
    """The name and the text of each page."""
    yield "reference/command.md", _command()
    yield "reference/metrics.md", _metrics()
    yield "reference/settings.md", _settings()


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cell(text: str) -> str:
    return _marked(" ".join(text.split())).replace("|", "\\|").replace("<", "&lt;")


def _marked(text: str) -> str:
    """The text with its options and variables marked as code."""
    parts = text.split("`")
    return "`".join(
        _CODE.sub(r"`\1`", part) if n % 2 == 0 else part for n, part in enumerate(parts)
    )


# -- the command -----------------------------------------------------------------------------------


def _command() -> str:
    root: Any = typer.main.get_command(app)
    shared = [each for each in _first(root).params if _is_shared(each)]
    names = {each.name for each in shared} | {"help"}
    parts = [
        "# The command",
        "Every command with its options, as `--help` prints them.",
        _overview(root),
        _exit_codes(root),
        "## Connection",
        "These options are the same for all commands that reach a database.",
        _options(shared),
    ]
    for path, command in _walk(root, ["holdfast"]):
        parts += _describe(path, command, names)
    return "\n\n".join(parts) + "\n"


def _overview(root: Any) -> str:
    """All commands by the panels of `holdfast --help`."""
    panels: dict[str, list[tuple[str, str]]] = {}
    for name, command in root.commands.items():
        if command.hidden:
            continue
        path = next(path for path, _ in _walk(command, ["holdfast", name]))
        link = f"[`holdfast {name}`](#{'-'.join(path)})"
        panels.setdefault(command.rich_help_panel, []).append((link, _first_line(command)))
    return "\n\n".join(
        f"**{panel}**\n\n{_table(['command', 'what it does'], rows)}"
        for panel, rows in panels.items()
    )


def _first_line(command: Any) -> str:
    return _cell((command.help or "").strip().partition("\n\n")[0])


def _exit_codes(root: Any) -> str:
    [said] = re.findall(r"Exit codes: (.*?)\.$", root.epilog, flags=re.M)
    rows = [tuple(each.split(" ", 1)) for each in said.split(", ")]
    blocked = "a process of `holdfast run` ended because a handler blocked its event loop"
    rows.append((f"{EXIT_BLOCKED}", blocked))
    return f"## Exit codes\n\n{_table(['code', 'meaning'], rows)}"


def _is_shared(parameter: Any) -> bool:
    return getattr(parameter, "rich_help_panel", None) == "Connection"


def _first(group: Any) -> Any:
    """A command that reaches a database."""
    return next(command for _, command in _walk(group, []) if any(map(_is_shared, command.params)))


def _walk(command: Any, path: list[str]) -> Iterator[tuple[list[str], Any]]:
    children = getattr(command, "commands", None)
    if not children:
        yield path, command
        return
    for name, child in sorted(children.items()):
        if not child.hidden:
            yield from _walk(child, [*path, name])


def _describe(path: list[str], command: Any, shared: set[str]) -> Iterator[str]:
    yield f"## {' '.join(path)}"
    yield _marked(inspect.cleandoc(command.help or ""))
    own = [each for each in command.params if each.name not in shared]
    if own:
        yield _options(own)
    examples = re.findall(r"^\s*\$ (.+)$", command.epilog or "", flags=re.M)
    if examples:
        yield "\n".join(["```console", *(f"$ {each}" for each in examples), "```"])


def _options(parameters: list[Any]) -> str:
    return _table(["option", "meaning"], [(_name(each), _meaning(each)) for each in parameters])


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or (parameter.name or '').upper()}`"
    return ", ".join(f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts))


def _meaning(parameter: Any) -> str:
    text = _cell(getattr(parameter, "help", None) or "")
    default = getattr(parameter, "default", None)
    if isinstance(default, int | float | str) and not isinstance(default, bool) and default:
        text = f"{text} Default: `{default}`."
    return text


# -- metrics ---------------------------------------------------------------------------------------

_LABELS = {
    "holdfast_breaker_state": "`breaker`",
    "holdfast_jobs_retired_total": "`entrypoint`, `reason`",
    "holdfast_queue_depth": "`entrypoint`, `status`",
    "holdfast_running": "",
    "holdfast_worker_errors_total": "`step`",
    "holdfast_workers": "",
}
"""The labels of a metric that has others than `entrypoint`."""


_METRICS = """\
# Metrics

`holdfast run --health-port 8080` answers these at `/metrics`, in Prometheus' format. With
`--processes` they are those of all processes together. [Observe](../guides/observability.md) shows
alerts, and [Telemetry](../telemetry.md) lists the instruments of OpenTelemetry.

{table}

A counter begins at zero when its worker starts. The gauges of the queue (`queue_depth`,
`queue_oldest_age_seconds`, `breaker_state`) are read from the database, so each worker shows the
same: take their `max`, not their `sum`.
"""


def _metrics() -> str:
    rows = [
        (f"`{each.name}`", each.kind, _LABELS.get(each.name, "`entrypoint`"), _cell(each.help))
        for each in FAMILIES
    ]
    return _METRICS.format(table=_table(["metric", "kind", "labels", "meaning"], rows))


# -- settings --------------------------------------------------------------------------------------

_RUN = {
    "connections": ("4", "Database connections of a busy worker. An idle one has at most 2."),
    "listen_dsn": ("-", "An address past a connection pooler, for wake-ups alone."),
    "mode": ("continuous", "`drain` ends the worker when nothing is claimable."),
    "signals": (
        "True",
        "Whether SIGTERM and SIGINT stop the worker. The command has no option for it.",
    ),
}
"""Parameters of `hf.run` that are no worker settings, with their defaults."""

_CONNECT = {
    "listen_dsn": ("-", "An address past a connection pooler, for wake-ups alone."),
    "driver": (
        "-",
        "`asyncpg` or `psycopg`. Unless given, the one that is installed; of both asyncpg.",
    ),
    "timeout": ("", "Seconds after which a call on a silent connection gives up."),
}
"""Parameters of `Holdfast.connect` beside the options that every queue has."""

_OPTIONS = {"prefix": "holdfast", "notify": "True", "max_payload": f"{MAX_PAYLOAD:,}"}

_VARIABLES = {
    "HOLDFAST_DSN": "The database.",
    "DATABASE_URL": "The database, where `HOLDFAST_DSN` is not set.",
    "PGHOST, PGPORT, PGUSER, PGDATABASE, …": "The database, where neither of both is set.",
    "HOLDFAST_PREFIX": "The prefix of the tables.",
    "HOLDFAST_SCHEMA": "The schema of the tables.",
    "HOLDFAST_LISTEN_DSN": "An address past a connection pooler, for wake-ups alone.",
    "HOLDFAST_WEB_TOKEN": "The token of operators for `holdfast web`.",
    "HOLDFAST_WEB_VIEWER_TOKEN": "The token of viewers for `holdfast web`.",
    "OTEL_*": "The exporters of `holdfast run --otel`, as OpenTelemetry defines them.",
}


_SETTINGS = """\
# Settings

The defaults are meant to be right. Durations are `timedelta` in Python. The command takes `30s`,
`5m` or `1h`.

## Of a worker

Arguments of `hf.run(…)`. [`holdfast run`](command.md#holdfast-run) has an option of the same name
for each, such as `--batch-size` for `batch_size`, and more of them for the process.

{worker}

## Of a queue

Arguments of `Holdfast.connect(dsn, …)`:

{queue}

## Of a task

[Tasks](../tasks.md#options) lists the options of `@hf.task`, [Entrypoints](../handlers.md) those of
`@hf.entrypoint`.

## In the database

Log rows of jobs that succeeded are kept for {succeeded}, all others for {others}.
`holdfast retention set` [changes that](../guides/retention.md). [Limits](../guides/limits.md),
[pauses](../guides/pause.md) and [schedules](../schedules.md) are rows as well.

## Environment variables

Only the command reads the environment. The library takes arguments.

{variables}
"""


def _settings() -> str:
    kept = Retention()
    return _SETTINGS.format(
        worker=_table(["argument", "default", "meaning"], _of_a_worker()),
        queue=_table(["argument", "default", "meaning"], _of_a_queue()),
        succeeded=_said(kept.succeeded),
        others=_said(kept.others),
        variables=_table(["variable", "meaning"], [(f"`{k}`", v) for k, v in _VARIABLES.items()]),
    )


def _of_a_worker() -> Iterator[tuple[str, ...]]:
    given = inspect.signature(Holdfast.run).parameters
    defaults, notes = WorkerSettings(), _notes(WorkerSettings)
    for each in fields(WorkerSettings):
        if each.name in given:
            meaning = notes[each.name].replace("SHORTEST_POLL", _said(SHORTEST_POLL))
            yield f"`{each.name}`", _said(getattr(defaults, each.name)), _cell(meaning)
    for name, (default, meaning) in _RUN.items():
        yield f"`{name}`", default, meaning


def _of_a_queue() -> Iterator[tuple[str, ...]]:
    timeout = inspect.signature(Holdfast.connect).parameters["timeout"].default
    for name, meaning in _notes(HoldfastOptions).items():
        if name != "clock":
            yield f"`{name}`", _OPTIONS.get(name, "-"), _cell(meaning)
    for name, (default, meaning) in _CONNECT.items():
        yield f"`{name}`", default or f"{timeout:g}", meaning


def _said(value: object) -> str:
    """A default as a reader says it."""
    if not isinstance(value, timedelta):
        return f"{value}"
    for unit, seconds in (("days", 86_400), ("minutes", 60), ("s", 1)):
        if value >= timedelta(seconds=seconds):
            return f"{value.total_seconds() / seconds:g} {unit}"
    return f"{value.total_seconds():g} s"


def _notes(documented: type) -> dict[str, str]:
    """The docstrings that stand below the fields of a class."""
    source = inspect.getsource(documented)
    found = re.findall(r'^    (\w+): [^\n]+\n    """(.*?)"""', source, flags=re.M | re.S)
    return {name: " ".join(text.split()) for name, text in found}
