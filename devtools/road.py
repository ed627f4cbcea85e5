"""The road of one job: every call of the package from `enqueue` to the committed outcome.

An idle worker on an embedded server (asyncpg) runs one job with a handler that does nothing. The
event loop's thread is traced meanwhile. Renewals run in a thread of their own and are not traced.

    python devtools/road.py            the figures
    python devtools/road.py --calls    every call as well, in order
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import logging
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import holdfast
from holdfast import Holdfast, Job
from holdfast.events import Settled

if TYPE_CHECKING:
    from types import FrameType

    from holdfast.events import Event

PACKAGE = Path(holdfast.__file__).parent
WORKER = PACKAGE / "worker"
_IDLE_SECONDS = 1.5
_INLINE = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
"""Parts of a function. Newer Pythons do not call the first three."""


class Call(NamedTuple):
    """One function of the package, entered for the first time or resumed."""

    file: str
    function: str
    resumed: bool


class Road:
    """Traces this thread while `with` lasts, and records its calls from `begin` on."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._recording = False
        self._seen: dict[int, FrameType] = {}
        """Frames by identity. Kept alive, because a later frame may have the same address."""

    def __enter__(self) -> Road:
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def begin(self) -> None:
        """Record from now on. Coroutines that have begun before are resumed, not called."""
        self._recording = True

    def end(self) -> None:
        """Record no longer: what follows is no part of the road."""
        self._recording = False

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(PACKAGE)):
            return
        if code.co_name in _INLINE:
            return
        file = str(Path(code.co_filename).relative_to(PACKAGE))
        known = id(frame) in self._seen
        self._seen[id(frame)] = frame
        if self._recording:
            self.calls.append(Call(file, code.co_qualname, known))


class Watch:
    """Ends the road when the outcome is committed."""

    def __init__(self, road: Road) -> None:
        self._road = road
        self.settled = asyncio.Event()

    def notify(self, event: Event) -> None:
        if isinstance(event, Settled):
            self._road.end()
            self.settled.set()


async def trace(directory: Path) -> Road:
    """Run a few jobs, each on an idle worker. The last one is recorded."""
    road = Road()
    watch = Watch(road)
    async with Holdfast.connect(f"embedded:{directory}") as hf:
        await hf.install()
        hf.observe(watch)

        @hf.entrypoint("road")
        async def handle(job: Job) -> None:
            pass

        with road:
            working = asyncio.get_running_loop().create_task(hf.run(signals=False))
            # The first jobs open connections and prepare statements, which is not the road.
            for last in (False, False, False, True):
                # The worker polls a few times after a job, and then sleeps until a wake-up.
                await asyncio.sleep(_IDLE_SECONDS)
                watch.settled.clear()
                if last:
                    road.begin()
                await hf.queries.enqueue("road")
                await watch.settled.wait()
        hf.shutdown.set()
        await working
    return road


def callbacks() -> list[str]:
    """Functions that a part of the worker is given so that it can call back into another part."""
    found = []
    for path in sorted(WORKER.glob("*.py")):
        for owner in ast.walk(ast.parse(path.read_text())):
            if not isinstance(owner, ast.ClassDef):
                continue
            for method in owner.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    given = [*method.args.args, *method.args.kwonlyargs]
                    found += [
                        f"{path.name} {owner.name}({each.arg})"
                        for each in given
                        if each.annotation
                        and "Callable" in ast.unparse(each.annotation)
                        # A clock is data that moves.
                        and each.arg not in ("now", "clock")
                    ]
    return found


def entries(calls: list[Call]) -> Counter[str]:
    """How often the road comes into each file from another one."""
    return Counter(
        call.file
        for before, call in zip([None, *calls], calls, strict=False)
        if before is None or before.file != call.file
    )


def report(road: Road) -> str:
    calls = [call for call in road.calls if not call.resumed]
    into = entries(calls)
    inside = {file: count for file, count in into.items() if file.startswith("worker/")}
    wired = callbacks()
    lines = [
        f"calls               {len(calls)}",
        f"resumptions         {len(road.calls) - len(calls)}",
        f"files               {len(into)}",
        f"switches of file    {sum(into.values()) - 1}",
        f"callbacks           {len(wired)}: {', '.join(wired)}",
        "entries into worker/",
        *(
            f"  {count:3} {file}"
            for file, count in sorted(inside.items(), key=lambda each: -each[1])
        ),
        "calls by file",
        *(
            f"  {count:3} {file}"
            for file, count in Counter(call.file for call in calls).most_common()
        ),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calls", action="store_true", help="print every call in order")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="holdfast-road-") as directory:
        road = asyncio.run(trace(Path(directory) / "data"))
    if options.calls:
        for call in road.calls:
            print(f"{'  resumed' if call.resumed else ''} {call.file} {call.function}")
    print(report(road))


if __name__ == "__main__":
    main()
