"""Makes the pages of the site that are read from the code, and links into the source tree.

MkDocs loads this file as a hook. Nothing it makes is kept in the repository.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import reference_pages
from mkdocs.structure.files import File

if TYPE_CHECKING:
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
    for name, text in reference_pages.pages():
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
