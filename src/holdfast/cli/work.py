"""One worker process: opens the target, runs it, and ends in time after a stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from types import ModuleType
from typing import Any

from holdfast.app import Holdfast
from holdfast.cli.connect import Options
from holdfast.cli.target import AppReference, opened
from holdfast.errors import HoldfastError, InvalidInput, MissingDependency
from holdfast.events import Telemetry
from holdfast.repeated import RepeatedLog
from holdfast.service.link import ProcessRole
from holdfast.service.probe import WorkerProbe
from holdfast.service.side_loop import Side
from holdfast.service.stop import FAST, Stop, end_blocked
from holdfast.settings import WorkerSettings
from holdfast.stores.memory import MemoryStore
from holdfast.worker.claim import QueueExecutionMode
from holdfast.worker.quarantine import Suspects

logger = logging.getLogger("holdfast.run")

_YOUNG_OBJECTS = 20_000
_QUARANTINE_NICE = 10
"""Suspects that compute, and the start of their processes, take little from the other jobs."""

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of a worker process."""

    target: AppReference
    settings: WorkerSettings
    mode: QueueExecutionMode
    counted: bool
    """Whether every client may read the metrics."""
    asked: Options
    """The database, as far as the command line names it."""
    uvloop: bool = True
    otel: bool = False
    connections: int | None = None
    listen_dsn: str | None = field(default=None, repr=False)
    only: tuple[str, ...] = ()
    """The entrypoints to serve; empty means all."""
    without: tuple[str, ...] = ()


def work(
    plan: Plan,
    *,
    bound: socket.socket | None,
    parent: socket.socket | None,
    role: ProcessRole | None,
) -> None:
    """Until a signal, the parent's death or, in drain mode, the end of the work."""
    if role is ProcessRole.quarantine:
        with suppress(OSError):
            os.nice(_QUARANTINE_NICE)
    stop = Stop(plan.settings.drain_timeout.total_seconds())
    stop.watch()
    side = Side(bound=bound, parent=parent, supervised=role is ProcessRole.worker, stop=stop)
    side.start()
    try:
        with (
            _telemetry(plan.otel) as telemetry,
            asyncio.Runner(loop_factory=_loop_factory(plan.uvloop)) as runner,
        ):
            _run_through(runner.get_loop(), _work(plan, role, stop, side, telemetry), stop)
    except asyncio.CancelledError:
        if not stop.level:
            raise HoldfastError(
                "a handler, or what one has started, cancelled the tasks of the worker; it ends, "
                "and its jobs are released"
            ) from None
        logger.info("stopped before the worker had started")
    finally:
        side.end()


def _run_through(
    loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, None], stop: Stop
) -> None:
    """Run to the end, also when a handler stops the loop, or what it left behind calls sys.exit().

    Either would end the event loop in the middle of all jobs.
    """
    task = loop.create_task(main)
    log = RepeatedLog(logger)
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt, RuntimeError) as error:
            if task.done() or loop.is_closed():
                raise
            what = f"{type(error).__name__} was raised outside any handler, by a callback or task"
            if isinstance(error, RuntimeError):
                what = "the event loop was stopped, by a handler or something"
            log.error(f"{what} that one has started; the worker goes on", exc_info=True)
            # The loop takes the wake-up descriptor of signals whenever it starts.
            loop.call_soon(stop.reclaim)


class _OnStop:
    """Ends the start of a worker on a stop, and later sets its shutdown."""

    def __init__(self, drain_timeout: timedelta) -> None:
        self._task = asyncio.current_task()
        self._drain_timeout = drain_timeout
        self.holdfast: Holdfast | None = None

    def __call__(self, level: int) -> None:
        if self.holdfast is None:
            # Nothing is leased yet, so the start can be ended at once.
            assert self._task is not None  # noqa: S101 - it is made in a coroutine
            self._task.cancel()
            return
        if level >= FAST:
            self.holdfast.queue_manager.fast_stop.set()
        elif not self.holdfast.shutdown.is_set():
            logger.info("stopping: running jobs have %s to finish", self._drain_timeout)
        self.holdfast.shutdown.set()


def _telemetry(wanted: bool) -> AbstractContextManager[Telemetry | None]:
    if not wanted:
        return nullcontext()
    try:
        from holdfast.telemetry.otel import exporting
    except ImportError:
        raise MissingDependency(
            "--otel needs OpenTelemetry, which is not installed; run: pip install 'holdfast[otel]'"
        ) from None
    return exporting(os.environ)


async def _work(
    plan: Plan, role: ProcessRole | None, stop: Stop, side: Side, telemetry: Telemetry | None
) -> None:
    stop.reclaim()
    on_stop = _OnStop(plan.settings.drain_timeout)
    stop.listen(asyncio.get_running_loop(), on_stop)
    async with opened(plan.target) as holdfast:
        _check_place(plan, holdfast)
        holdfast.plan_connections(plan.connections, plan.listen_dsn)
        holdfast.serve(only=plan.only, without=plan.without)
        probe = WorkerProbe(holdfast, plan.settings)
        await holdfast.wait_for_connection()
        # A supervisor takes the greeting below as the proof that a start can succeed.
        await probe.sources.verify()
        on_stop.holdfast = holdfast
        holdfast.queue_manager.on_blocked = end_blocked
        holdfast.queue_manager.treat_suspects(_treatment(plan, role, holdfast))
        if telemetry is not None:
            holdfast.instrument(telemetry)
        if plan.counted:
            holdfast.observe(probe.metrics)
        try:
            await side.attach(probe)
            place = holdfast.place or "its own connection"
            what = (
                f"the suspects of {plan.target}" if role is ProcessRole.quarantine else plan.target
            )
            logger.info("worker %s runs %s on %s", probe.manager.id, what, place)
            served = holdfast.served
            logger.info(
                "it serves %d entrypoint%s with %d slots: %s",
                len(served),
                "" if len(served) == 1 else "s",
                plan.settings.concurrency,
                ", ".join(served),
            )
            spare_the_collector()
            await _run(holdfast, plan)
        finally:
            await side.detach()
    logger.info("stopped")


def _treatment(plan: Plan, role: ProcessRole | None, holdfast: Holdfast) -> Suspects:
    """A drain ends with its suspects, and jobs in memory cannot be seen by another process."""
    if role is ProcessRole.quarantine:
        return Suspects.only
    if plan.mode is QueueExecutionMode.drain or isinstance(holdfast.store, MemoryStore):
        return Suspects.run
    return Suspects.leave


def _check_place(plan: Plan, holdfast: Holdfast) -> None:
    """The target connects by itself, perhaps to a database that is written in it."""
    asked, fault = plan.asked, ""
    if asked.typed & {"dsn", "embedded"} and holdfast.place not in (None, asked.describe()):
        fault = f"works on {holdfast.place}, not on {asked.describe()}"
    elif asked.typed & {"prefix", "schema"} and holdfast.names != asked.names:
        fault = f"has its tables at {holdfast.names.table()}, not at {asked.names.table()}"
    if fault:
        raise InvalidInput(
            f"target {plan.target} {fault}, which the command line names; let it read "
            f"HOLDFAST_DSN, HOLDFAST_PREFIX and HOLDFAST_SCHEMA, or leave the option out"
        )


def spare_the_collector() -> None:
    """Exempt loaded modules from garbage collection, and collect less often.

    The modules stay for good, and the objects of a batch of jobs are in no cycle, so the collector
    would examine both in vain.
    """
    gc.collect()
    gc.freeze()
    youngest, *older = gc.get_threshold()
    # Zero means that collection is switched off.
    if youngest:
        gc.set_threshold(max(youngest, _YOUNG_OBJECTS), *older)


async def _run(holdfast: Holdfast, plan: Plan) -> None:
    settings = plan.settings
    await holdfast.run(
        dequeue_timeout=settings.dequeue_timeout,
        batch_size=settings.batch_size,
        heartbeat_timeout=settings.heartbeat_timeout,
        drain_timeout=settings.drain_timeout,
        concurrency=settings.concurrency,
        max_loop_block=settings.max_loop_block,
        mode=plan.mode,
        signals=False,
    )


def _loop_factory(wanted: bool) -> LoopFactory | None:
    uvloop = _import_uvloop() if wanted else None
    factory: LoopFactory | None = uvloop.new_event_loop if uvloop else None
    return factory


def _import_uvloop() -> ModuleType | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop
