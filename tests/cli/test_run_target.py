"""What `holdfast run` accepts as its target, and what it says about everything else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast import InvalidInput, JobId
from holdfast.cli.target import AppReference, opened
from tests.cli.running import JOBS, Bench, installed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import Database


@pytest.fixture
def bench(tmp_path: Path, pg18: Database) -> Iterator[Bench]:
    yield from installed(tmp_path, pg18.dsn)


@pytest.fixture
def folder(tmp_path: Path) -> Bench:
    """Without a database: what fails here fails before one is needed."""
    return Bench(tmp_path, "postgresql://nobody@127.0.0.1:1/none")


@pytest.mark.parametrize("target", ["jobs:main", "jobs:managed", "module_level:holder.queue"])
def test_drain_mode_runs_what_there_is_and_ends_with_code_0(bench: Bench, target: str) -> None:
    (bench.directory / "module_level.py").write_text(
        "import types, jobs\nholder = types.SimpleNamespace(queue=jobs.make())\n"
    )
    ids = bench.enqueue("quick", 3)

    code, log = bench.run(target, "--mode", "drain")

    assert code == 0, log
    assert sorted(int(line[1]) for line in bench.journal("quick")) == ids


def test_arguments_after_two_dashes_reach_the_factory(bench: Bench) -> None:
    bench.enqueue("quick")

    code, log = bench.run("jobs:main", "--mode", "drain", "--", "tenant-7", "--loud")

    assert code == 0, log
    assert [line[3:] for line in bench.journal("quick")] == [["tenant-7", "--loud"]]


def test_what_follows_the_yield_of_a_context_manager_may_still_use_the_queue(bench: Bench) -> None:
    code, log = bench.run("jobs:managed", "--mode", "drain")

    assert code == 0, log
    assert bench.journal("closing") == [["closing", "0"]]


def test_a_dsn_on_the_command_line_reaches_the_target(bench: Bench) -> None:
    bench.enqueue("quick")
    dsn, bench.dsn = bench.dsn, "postgresql://nobody@127.0.0.1:1/none"

    code, log = bench.run("jobs:main", "--mode", "drain", "--dsn", dsn)

    assert code == 0, log
    assert len(bench.journal("quick")) == 1
    assert re.search(r"runs jobs:main on 127\.0\.0\.1:\d+, database tests_", log)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dsn", "postgresql://127.0.0.1:1/none"], "not on 127.0.0.1:1, database none"),
        (["--embedded=elsewhere"], "not on embedded database"),
        (["--prefix", "other"], 'has its tables at "holdfast", not at "other"'),
    ],
)
def test_a_target_that_works_elsewhere_than_the_command_line_says_is_refused(
    bench: Bench, options: list[str], words: str
) -> None:
    (bench.directory / "written_in.py").write_text(
        f"from holdfast import Holdfast\nhf = Holdfast.connect({bench.dsn!r})\n"
        "@hf.entrypoint('quick')\nasync def quick(job): ...\n"
    )
    [job_id] = bench.enqueue("quick")

    code, log = bench.run("written_in:hf", "--mode", "drain", *options)

    assert code == 2, log
    assert words in log
    assert "let it read HOLDFAST_DSN" in log
    assert bench.ask(lambda hf: hf.queries.get_jobs([JobId(job_id)]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere:main"], "there is no module 'nowhere'"),
        (["broken:main"], "module 'broken' cannot be imported: SyntaxError"),
        (["jobs:mian"], "module 'jobs' has no attribute 'mian'; did you mean main?"),
        (["jobs:number"], "target jobs:number is an object of type int"),
        (["jobs:main", "--drain-timeout", "soon"], "--drain-timeout 'soon' is not a duration"),
    ],
)
def test_a_target_that_cannot_work_is_one_line_and_code_2(
    folder: Bench, arguments: list[str], words: str
) -> None:
    (folder.directory / "broken.py").write_text("def main(:\n")

    code, log = folder.run(*arguments)

    assert code == 2, log
    assert words in log
    assert len(log.splitlines()) == 1


def test_a_target_without_entrypoints_is_one_line_and_code_2(bench: Bench) -> None:
    code, log = bench.run("jobs:empty", "--processes", "2", "--log-level", "error")

    assert code == 2, log
    assert "no entrypoint is registered" in log
    assert len(log.splitlines()) == 1


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("other_jobs", "target 'other_jobs' is not module:attribute"),
        ("other_jobs:", "target 'other_jobs:' is not module:attribute"),
        ("other_jobs.inner:main", "there is no module 'other_jobs.inner'"),
        ("needy:main", "module 'needy' cannot be imported: ModuleNotFoundError"),
        ("leaving:main", "module 'leaving' cannot be imported: SystemExit"),
        ("other_jobs:main.inner", "target other_jobs:main.inner has no attribute 'inner'"),
        ("other_jobs:Holdfast", "target other_jobs:Holdfast is the class Holdfast"),
        ("other_jobs:generates", "decorate it with @asynccontextmanager"),
        ("other_jobs:returns_nothing", "target other_jobs:returns_nothing returned None"),
        ("other_jobs:yields_text", "target other_jobs:yields_text yields an object of type str"),
        ("other_jobs:hangs too many", "cannot be called with 2 arguments"),
        ("other_jobs:memory too", "which takes no arguments"),
    ],
)
async def test_what_is_wrong_with_a_target_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, words: str
) -> None:
    (tmp_path / "other_jobs.py").write_text(
        f"{JOBS}\nmemory = Holdfast.in_memory()\n"
        "@asynccontextmanager\nasync def yields_text():\n    yield 'text'\n"
    )
    (tmp_path / "needy.py").write_text("import surely_not_installed\n")
    (tmp_path / "leaving.py").write_text("raise SystemExit('no')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "other_jobs", raising=False)
    name, *arguments = target.split()

    with pytest.raises(InvalidInput, match=re.escape(words)):
        async with opened(AppReference.parse(name, arguments)):
            pass


def test_a_factory_that_raises_is_reported_in_one_line(folder: Bench) -> None:
    code, log = folder.run("jobs:raises")

    assert code == 1
    assert log.splitlines() == [
        "holdfast: target jobs:raises failed: LookupError: no such tenant; add --debug to see where"
    ]


def test_debug_shows_where_a_factory_raised(folder: Bench) -> None:
    code, log = folder.run("jobs:raises", "--debug")

    assert code == 1
    assert "Traceback" in log
    assert 'jobs.py", line' in log


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_database_that_is_not_there_at_the_start_is_one_line(
    folder: Bench, processes: str
) -> None:
    code, log = folder.run("jobs:main", "--processes", processes, "--log-level", "error")

    assert code == 3, log
    assert len(log.splitlines()) == 1


def test_missing_tables_are_one_line(tmp_path: Path, pg18: Database) -> None:
    code, log = Bench(tmp_path, pg18.dsn).run("jobs:main", "--log-level", "error")

    assert code == 4, log
    assert "holdfast install" in log
    assert len(log.splitlines()) == 1


@pytest.mark.parametrize("processes", [(), ("--processes", "2")], ids=["one", "two"])
def test_a_file_beside_the_target_does_not_replace_the_standard_library(
    bench: Bench, processes: tuple[str, ...]
) -> None:
    (bench.directory / "secrets.py").write_text("open('ran', 'w').close()\nfrom random import *\n")
    bench.enqueue("quick")
    # As the installed command does it, whose own folder is the first place that Python searches.
    command = [str(Path(sys.executable).with_name("holdfast")), "run", "jobs:main"]
    done = subprocess.run(
        [*command, "--mode", "drain", *processes],
        cwd=bench.directory,
        env=os.environ | {"HOLDFAST_DSN": bench.dsn},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    assert bench.journal("quick")
    assert not (bench.directory / "ran").exists()
