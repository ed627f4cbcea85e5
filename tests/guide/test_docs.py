"""The documentation says what the code says."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from chaos import page as fault_page
from chaos.report import DEFAULT

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
FENCED = re.compile(r"^```.*?^```", flags=re.M | re.S)
HEADING = re.compile(r"^#+ (.+)$", flags=re.M)
LAYOUT = re.compile(r"imports go downwards only:\n\n```\n(.*?)```", flags=re.S)
LAYERS = re.compile(r"enforces the layers: (.*?)\. Rooms", flags=re.S)
EXAMPLE = re.compile(r"<!-- example: [^>]*-->\n```python\n(.*?)```", flags=re.S)


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build", ROOT / "docs" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_up_to_date(build: ModuleType) -> None:
    for name, make in build.PAGES.items():
        assert (ROOT / "docs" / name).read_text("utf-8") == make(), f"run `make docs` for {name}"


def test_the_page_of_the_fault_harness_is_up_to_date() -> None:
    written = fault_page.PATH.read_text("utf-8")
    assert written == fault_page.filled(DEFAULT), "run `python -m chaos page`"


def anchors(page: Path) -> set[str]:
    """What the hosts of repositories call the headings of a page."""
    headings = HEADING.findall(FENCED.sub("", page.read_text("utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text("utf-8")):
        if "://" in target:
            continue
        leads_to = page.parent / target if target else page
        assert leads_to.exists(), f"{page.name} links to {target}"
        if anchor and leads_to.suffix == ".md":
            assert anchor in anchors(leads_to), f"{page.name} links to {target}#{anchor}"


def test_contributors_are_told_the_layers_that_are_enforced() -> None:
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    [enforced] = [rule["layers"] for rule in rules["contracts"] if rule["id"] == "layers"]
    built = {path.stem for path in (ROOT / "src" / "holdfast").iterdir()}
    rooms = [[room for room in re.findall(r"\w+", layer) if room in built] for layer in enforced]
    listed = LAYOUT.search((ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    assert listed is not None
    assert [layer.split(" | ") for layer in listed[1].splitlines()] == rooms
    enumerated = LAYERS.search((ROOT / "ARCHITECTURE.md").read_text("utf-8"))
    assert enumerated is not None
    assert [layer.split(" | ") for layer in re.findall("`([^`]+)`", enumerated[1])] == rooms


async def test_the_example_of_a_test_runs_as_printed() -> None:
    [example] = EXAMPLE.findall((ROOT / "docs" / "handlers.md").read_text("utf-8"))
    names: dict[str, Any] = {}
    exec(example, names)  # noqa: S102 (our own page)
    [test] = [made for name, made in names.items() if name.startswith("test_")]
    await test()
