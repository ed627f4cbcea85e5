"""What `holdfast run` accepts as its target, and what it says about everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.running import Bench, installed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["jobs"], "target 'jobs' is not module:attribute"),
        (["nowhere:main"], "there is no module 'nowhere'"),
        (["jobs.inner:main"], "there is no module 'jobs.inner'"),
        (["broken:main"], "module 'broken' cannot be imported: SyntaxError"),
        (["needy:main"], "module 'needy' cannot be imported: ModuleNotFoundError"),
        (["jobs:mian"], "module 'jobs' has no attribute 'mian'; did you mean main?"),
        (["jobs:number"], "target jobs:number is an object of type int"),
        (["jobs:Holdfast"], "target jobs:Holdfast is the class Holdfast"),
        (["jobs:generates"], "decorate it with @asynccontextmanager"),
        (["jobs:returns_nothing"], "target jobs:returns_nothing returned None"),
        (["jobs:hangs", "--", "x"], "cannot be called with 1 arguments"),
        (["jobs:empty"], "no entrypoint is registered"),
        (["jobs:main", "--drain-timeout", "soon"], "--drain-timeout 'soon' is not a duration"),
        (["jobs:main", "--heartbeat-timeout", "0s"], "heartbeat_timeout must be"),
    ],
)
def test_a_target_that_cannot_work_is_named_in_one_line(
    folder: Bench, request: pytest.FixtureRequest, arguments: list[str], words: str
) -> None:
    if arguments == ["jobs:empty"]:
        folder = request.getfixturevalue("bench")
    (folder.directory / "broken.py").write_text("def main(:\n")
    (folder.directory / "needy.py").write_text("import surely_not_installed\n")

    code, log = folder.run(*arguments, "--log-level", "error")

    assert code == 2, log
    assert words in log
    assert len(log.splitlines()) == 1


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
