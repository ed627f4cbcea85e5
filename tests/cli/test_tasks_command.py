"""`holdfast tasks`, and `holdfast enqueue --app`: the command line knows the tasks."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import psycopg

from tests.cli.command_line import holdfast

if TYPE_CHECKING:
    from pathlib import Path

APP = """
from typing import Annotated
from holdfast import Holdfast, Redacted

hf = Holdfast.connect("postgresql://nobody@127.0.0.1:1/none")

@hf.task(aliases=("send",), store_result=True)
async def ship(order: int, *, note: Annotated[str, Redacted] = "") -> str: ...

@hf.entrypoint("plain")
async def plain(job): ...
"""


def _app(folder: Path) -> str:
    """The value of PYTHONPATH with which the command finds the application."""
    (folder / "shop.py").write_text(APP, "utf-8")
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


def test_tasks_are_listed_without_a_database(tmp_path: Path) -> None:
    done = holdfast("tasks", "--app", "shop:hf", PYTHONPATH=_app(tmp_path))
    assert (done.code, done.err) == (0, "")
    assert "shop.ship(order: int" in done.out
    assert "also send" in done.out
    [task] = json.loads(
        holdfast("tasks", "--app", "shop:hf", "--json", PYTHONPATH=_app(tmp_path)).out
    )
    assert (task["name"], task["aliases"], task["stores_result"]) == ("shop.ship", ["send"], True)
    assert set(task["schema"]["properties"]) == {"order", "note"}
    assert task["schema"]["required"] == ["order"]


def test_a_payload_is_checked_against_its_task(installed: str, tmp_path: Path) -> None:
    folder = _app(tmp_path)
    right = ("enqueue", "ship", '{"order": 7, "note": "for ann"}', "--app", "shop:hf")
    done = holdfast(*right, dsn=installed, PYTHONPATH=folder)
    warning = "holdfast: no live worker serves 'shop.ship', so the job waits\n"
    assert (done.code, done.err) == (0, warning)
    misfit = ("enqueue", "ship", '{"order": "x"}', "--app", "shop:hf")
    wrong = holdfast(*misfit, dsn=installed, PYTHONPATH=folder)
    assert wrong.code == 2
    assert "order: Input should be a valid integer" in wrong.err
    typo = ("enqueue", "shp", "{}", "--app", "shop:hf")
    unknown = holdfast(*typo, dsn=installed, PYTHONPATH=folder)
    assert unknown.code == 2
    assert "has no task 'shp'" in unknown.err
    with psycopg.connect(installed) as connection:
        [(name, number)] = connection.execute("select entrypoint, id from holdfast").fetchall()
    assert name == "shop.ship"
    shown = holdfast("show", str(number), dsn=installed)
    assert '"note": "***"' in shown.out
    assert "for ann" not in shown.out + holdfast("show", str(number), "--json", dsn=installed).out
