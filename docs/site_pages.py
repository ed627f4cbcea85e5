"""Makes the pages of the site that are read from the code, and links into the source tree.

MkDocs loads this file as a hook. Nothing it makes is kept in the repository.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_COPIED = ("CHANGELOG.md", "SECURITY.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "ROADMAP.md")
"""Pages at the root of the repository that the site has as well, in the folder `project`."""
_BOOST = {"Learn": 2.0, "Guides": 4.0, "Reference": 1.0, "Understand": 0.3}
"""How much a page counts in the search, by its part: a question is answered by a guide first."""
_ALSO_CALLED = {
    "guides/cancel.md": ("revoke",),
    "guides/connections.md": ("pgbouncer", "pooler"),
    "guides/database-restart.md": ("reconnect", "connection lost", "outage", "failover"),
    "guides/dead-workers.md": ("stuck", "orphaned", "killed worker", "crashed worker"),
    "guides/from-celery.md": ("chain", "workflow", "migrate"),
    "guides/limits.md": ("limits per tenant", "rate limit", "throttle", "concurrency"),
    "guides/pause.md": ("pausing",),
    "guides/requeue.md": ("dead letter", "hold"),
    "guides/results.md": ("return value",),
    "guides/retention.md": ("prune", "clean up"),
    "guides/retry.md": ("retries", "backoff"),
    "guides/run-once.md": ("idempotency", "unique", "deduplication", "runs twice"),
    "guides/timeout.md": ("timeout", "times out"),
    "guides/workers.md": ("memory leak", "max tasks per child", "sigterm"),
    "schedules.md": ("cron", "periodic", "time zone", "recurring"),
    "transactions.md": ("django", "outbox"),
}
"""What other queues and their users call the task of a page. The search ranks these words first."""
_DIAGRAM = re.compile(r"^```mermaid\n.*?^```\n", flags=re.M | re.S)
"""A diagram that hosts of repositories draw. The site would have to load a program for it."""
_PRINTS = re.compile(r'^```text title="prints"$', flags=re.M)
_TEST = re.compile(r"`((?:\w+/)+\w+\.py(?:::\w+)*)`(?=[^\n]*\|$)", flags=re.M)
"""The name of a test in a table."""
_LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, text in _pages():
        files.append(File.generated(config, name, content=text))
    for name in _COPIED:
        text = (ROOT / name).read_text("utf-8")
        files.append(File.generated(config, f"project/{name.lower()}", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the site's own page where there is one, and make the others plain text."""
    source = page.file.src_uri
    page.meta["search"] = {"boost": _boost(page)}
    page.meta["tags"] = list(_ALSO_CALLED.get(source, ()))
    generated = source.startswith("project/")
    folder = ROOT if generated else ROOT / "docs" / Path(source).parent

    def replace(match: re.Match[str]) -> str:
        target, anchor = match[1], match[2] or ""
        path = (folder / target).resolve()
        if not path.is_relative_to(ROOT):
            return match[0]
        relative = path.relative_to(ROOT)
        if relative.parts[:1] == ("docs",):
            inside = Path(*relative.parts[1:])
        elif str(relative) in _COPIED:
            inside = Path("project", relative.name.lower())
        else:
            return f"]({_OUTSIDE}{relative})"
        if files.get_file_from_path(inside.as_posix()) is None:
            return match[0]
        ups = "../" * (len(Path(source).parts) - 1)
        return f"]({ups}{inside.as_posix()}{anchor})"

    text = _LINK.sub(replace, _with_look(source, markdown))
    if 'class="with-tests"' in text:
        text = _TEST.sub(_as_test, text)
    # A file of the source tree has no page here: its path stands in the text.
    return re.sub(r"\[([^\]]*)\]\(" + _OUTSIDE + r"([^)]*)\)", _as_path, text)


def _boost(page: Page) -> float:
    part = page.ancestors[-1].title if page.ancestors else ""
    return _BOOST.get(part, 1.0)


def _with_look(source: str, markdown: str) -> str:
    """The text with a drawing of ours in place of its diagram, or without it."""
    drawing = ROOT / "docs" / "images" / f"{Path(source).stem}.svg"
    drawn = drawing.read_text("utf-8").replace("\n", "") + "\n" if drawing.exists() else ""
    return _PRINTS.sub(
        '``` { .text .prints title="prints" }', _DIAGRAM.sub(lambda _: drawn, markdown)
    )


def _as_test(match: re.Match[str]) -> str:
    """The name of a test, which is long, with places where a line may end."""
    name = re.sub(r"(::|/|_(?!_))", r"\1<wbr>", match[1])
    return f"<code>{name}</code>"


_OUTSIDE = "source-tree:"


def _as_path(match: re.Match[str]) -> str:
    label, path = match[1], match[2]
    return label if path in label or path.endswith(label.strip("`")) else f"{label} (`{path}`)"


def _pages() -> Iterator[tuple[str, str]]:
    yield "reference/command.md", _command()
    yield "reference/metrics.md", _metrics()
    yield "reference/settings.md", _settings()


# -- the command -----------------------------------------------------------------------------------


def _command() -> str:
    import typer

    from holdfast.cli import app

    root = typer.main.get_command(app)
    lines = [
        "# The command",
        "",
        "Every command with its options, as `--help` prints them. The options under *Connection* "
        "are the same for all commands that reach a database.",
        "",
    ]
    shared = [
        parameter
        for parameter in _first_command(root).params
        if getattr(parameter, "rich_help_panel", None) == "Connection"
    ]
    lines += ["## Connection", "", *_table(shared), ""]
    names = {parameter.name for parameter in shared}
    for path, command in _walk(root, ["holdfast"]):
        lines += _describe(path, command, names)
    return "\n".join(lines)


def _first_command(group: Any) -> Any:
    return next(command for _, command in _walk(group, []) if _connects(command))


def _connects(command: Any) -> bool:
    return any(getattr(each, "rich_help_panel", None) == "Connection" for each in command.params)


def _walk(command: Any, path: list[str]) -> Iterator[tuple[list[str], Any]]:
    children = getattr(command, "commands", None)
    if not children:
        yield path, command
        return
    for name, child in sorted(children.items()):
        if not child.hidden:
            yield from _walk(child, [*path, name])


def _describe(path: list[str], command: Any, shared: set[str]) -> list[str]:
    words = " ".join(path)
    own = [each for each in command.params if each.name not in {*shared, "help"}]
    lines = [f"## {words}", "", inspect.cleandoc(command.help or ""), ""]
    if own:
        lines += [*_table(own), ""]
    examples = re.findall(r"^\s*\$ (.+)$", command.epilog or "", flags=re.M)
    if examples:
        lines += ["```console", *(f"$ {each}" for each in examples), "```", ""]
    return lines


def _table(parameters: list[Any]) -> list[str]:
    rows = ["| option | meaning |", "|---|---|"]
    for each in parameters:
        if each.param_type_name == "argument":
            name = f"`{each.metavar or (each.name or '').upper()}`"
        else:
            name = ", ".join(f"`{option}`" for option in (*each.opts, *each.secondary_opts))
        text = " ".join((getattr(each, "help", None) or "").split())
        default = getattr(each, "default", None)
        if isinstance(default, int | float | str) and not isinstance(default, bool) and default:
            text = f"{text} Default: `{default}`."
        rows.append(f"| {name} | {_cell(text)} |")
    return rows


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


# -- metrics, settings -----------------------------------------------------------------------------


def _metrics() -> str:
    from holdfast.telemetry.prometheus import FAMILIES

    rows = [f"| `{each.name}` | {each.kind} | {_cell(each.help)} |" for each in FAMILIES]
    return "\n".join(
        [
            "# Metrics",
            "",
            "What `/metrics` of a worker's health port answers. [Telemetry](../telemetry.md) shows "
            "how to turn it on, and lists the OpenTelemetry instruments.",
            "",
            "| metric | kind | meaning |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


_VARIABLES = {
    "HOLDFAST_DSN": "The database, for every command and for `Holdfast.connect` in examples.",
    "HOLDFAST_PREFIX": "The prefix of the tables.",
    "HOLDFAST_SCHEMA": "The schema of the tables.",
    "DATABASE_URL": "The database, where HOLDFAST_DSN is not set.",
    "PGHOST, PGPORT, PGUSER, PGDATABASE, …": "The database, where neither of both is set.",
}


def _settings() -> str:
    from dataclasses import fields

    from holdfast.settings import WorkerSettings

    defaults = WorkerSettings()
    notes = _attribute_notes(inspect.getsource(WorkerSettings))
    rows = [
        f"| `{each.name}` | `{getattr(defaults, each.name)}` | {_cell(notes.get(each.name, ''))} |"
        for each in fields(WorkerSettings)
    ]
    variables = [f"| `{name}` | {meaning} |" for name, meaning in _VARIABLES.items()]
    return "\n".join(
        [
            "# Settings",
            "",
            "What `hf.run(…)` and the options of `holdfast run` set for one worker process.",
            "",
            "| setting | default | meaning |",
            "|---|---|---|",
            *rows,
            "",
            "## Environment variables",
            "",
            "Only the command reads the environment. The library takes arguments.",
            "",
            "| variable | meaning |",
            "|---|---|",
            *variables,
            "",
        ]
    )


def _attribute_notes(source: str) -> dict[str, str]:
    """The docstrings that stand below the fields of a dataclass."""
    found = re.findall(r'^    (\w+): [^\n]+\n    """(.*?)"""', source, flags=re.M | re.S)
    return {name: " ".join(text.split()) for name, text in found}
