"""Holdfast through its public API."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from new_jobs import new_jobs
from protocol import TALLY, Spec, Subject, Work, act, serve

from holdfast import Holdfast, Job
from holdfast.cli.work import spare_the_collector

if TYPE_CHECKING:
    from collections.abc import Sequence

SETTINGS: dict[str, dict[str, Any]] = {
    "tuned": {"batch_size": 500, "concurrency": 1000},
    "defaults": {},
    "slots": {"concurrency": 100},
}


class HoldfastSubject(Subject):
    notify = True
    settings: ClassVar[dict[str, Any]] = {}

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._hf: Holdfast | None = None

    async def install(self) -> None:
        async with Holdfast.connect(self.dsn) as hf:
            await hf.install()

    async def connect(self, connections: int) -> None:
        # It decides itself how many connections it uses.
        self._hf = Holdfast.connect(self.dsn, notify=self.notify)
        await self._hf.verify()

    @property
    def hf(self) -> Holdfast:
        assert self._hf is not None  # noqa: S101 (connect() comes first)
        return self._hf

    async def one(self, task: str, data: str) -> None:
        await self.hf.queries.enqueue(task, data.encode())

    async def many(self, specs: Sequence[Spec]) -> int:
        return len(await self.hf.queries.enqueue_many(new_jobs(specs)))

    async def work(self, work: Work) -> None:
        async with Holdfast.connect(self.dsn) as hf:
            for task in work.tasks:
                register(hf, task)
            if work.telemetry is not None:
                instrument(hf, work.telemetry)
            # As `holdfast run` does before it begins.
            spare_the_collector()
            settings = SETTINGS[work.mode] | self.settings
            running = asyncio.create_task(hf.run(signals=False, **settings))
            await running


def register(hf: Holdfast, task: str) -> None:
    """A handler for the task; what fails is held at once."""

    async def noop(_job: Job) -> None:
        TALLY.count()

    async def other(job: Job) -> None:
        await act(task, (job.payload or b"").decode())

    plain = task not in ("nap", "stamp", "fail")
    hf.entrypoint(task, on_failure="hold")(noop if plain else other)


def instrument(hf: Holdfast, sampled: float) -> None:
    """The SDK as a service that samples its traces sets it up; only the sending is left out."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import (
        ConsoleMetricExporter,
        PeriodicExportingMetricReader,
    )
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    from holdfast.telemetry.otel import OpenTelemetry

    class Nowhere(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    tracers = TracerProvider(sampler=ParentBasedTraceIdRatio(sampled))
    tracers.add_span_processor(BatchSpanProcessor(Nowhere()))
    devnull = open(os.devnull, "w")  # noqa: SIM115 (open for as long as the process lives)
    reader = PeriodicExportingMetricReader(ConsoleMetricExporter(out=devnull))
    hf.instrument(OpenTelemetry(MeterProvider(metric_readers=[reader]), tracers))


class QuietHoldfast(HoldfastSubject):
    """The same without NOTIFY, to see what it costs the producers."""

    notify = False
    settings: ClassVar[dict[str, Any]] = {"dequeue_timeout": timedelta(milliseconds=20)}


if __name__ == "__main__":
    import sys

    serve(QuietHoldfast if "--quiet" in sys.argv else HoldfastSubject)
