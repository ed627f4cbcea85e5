"""The article's instruments, read back with the real SDK."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from holdfast import Context, Holdfast, Job, TableQueue
from holdfast.telemetry import gauges
from holdfast.telemetry.gauges import look
from holdfast.telemetry.otel import OpenTelemetry
from tests.tables.three_tables import SNOOZES
from tests.worker.workers import Watch, ends, eventually, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.servers import Database

INSTRUMENTS = {
    "queue.claimed": ("1", "Rows claimed from the queue"),
    "queue.processed": ("1", "Rows processed successfully"),
    "queue.failed": ("1", "Rows that failed processing"),
    "queue.stale_recovered": ("1", "Rows recovered from stale claims"),
    "queue.retired": ("1", "Rows retired after exceeding max attempts"),
    "queue.job_duration_ms": ("ms", "Time spent processing a job"),
}
QUEUE = TableQueue("email_snoozes", lease=timedelta(seconds=30))


@dataclass
class Instruments:
    """A telemetry whose figures and spans can be read."""

    reader: InMemoryMetricReader
    spans: InMemorySpanExporter
    meters: MeterProvider
    tracers: TracerProvider

    def metrics(self) -> dict[str, Any]:
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: metric
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def points(self, name: str) -> dict[tuple[tuple[str, Any], ...], Any]:
        """The figures of one instrument, by their attributes."""
        metric = self.metrics().get(name)
        points = metric.data.data_points if metric else ()
        return {tuple(sorted(point.attributes.items())): point for point in points}

    def total(self, name: str) -> float:
        return sum(point.value for point in self.points(name).values())

    def counts(self) -> dict[str, float]:
        names = ("claimed", "processed", "failed", "released", "lease_lost")
        return {name: self.total(f"queue.{name}") for name in names}

    def runs(self) -> list[ReadableSpan]:
        """The spans of handlers, in the order in which they ended."""
        return [span for span in self.spans.get_finished_spans() if span.name == "queue.process"]

    def in_flight(self) -> float:
        """What the counters say must be running."""
        counts = self.counts()
        return counts.pop("claimed") - sum(counts.values())


@pytest.fixture
def seen() -> Iterator[Instruments]:
    reader, spans = InMemoryMetricReader(), InMemorySpanExporter()
    meters, tracers = MeterProvider(metric_readers=[reader]), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    yield Instruments(reader, spans, meters, tracers)
    meters.shutdown()
    tracers.shutdown()


@pytest.fixture
async def hf(pg18: Database, witness: Any, seen: Instruments) -> AsyncIterator[Holdfast]:
    await witness.execute(SNOOZES.ddl)
    async with Holdfast.connect(pg18.dsn) as found:
        found.instrument(OpenTelemetry(seen.meters, seen.tracers))
        yield found


async def add(witness: Any, *subjects: str, **values: Any) -> None:
    columns = {"user_email": "ann@example.org", "message_id": "<1>", **values}
    places = ", ".join(f"${n}" for n in range(2, len(columns) + 2))
    for subject in subjects:
        await witness.execute(
            f"insert into email_snoozes (remind_at, subject, {', '.join(columns)})"
            f" values (now(), $1, {places})",
            subject,
            *columns.values(),
        )


async def handle(row: dict[str, Any]) -> None:
    if row["subject"] == "bad":
        raise ValueError("no such mailbox")


class TestTheInstruments:
    async def test_have_the_names_units_and_words_of_the_article(
        self, hf: Holdfast, witness: Any, seen: Instruments
    ) -> None:
        hf.table(QUEUE)(handle)
        await add(witness, "good", "bad")
        await add(witness, "bad", attempts=4)
        await witness.execute(
            "insert into email_snoozes (user_email, message_id, remind_at, claimed_at, claimed_by,"
            " claim_token) values ('a', 'b', now(), now() - interval '1 hour', 'dead',"
            " gen_random_uuid())"
        )
        watch = Watch(hf)
        async with working(hf, signals=False, heartbeat_timeout=timedelta(seconds=0.3)):
            await watch.until_settled(4)
        metrics = seen.metrics()
        assert {
            name: (metrics[name].unit, metrics[name].description) for name in INSTRUMENTS
        } == INSTRUMENTS
        assert {"queue.wait_ms", "queue.claimed"} <= set(metrics)

    async def test_have_the_attributes_of_the_article(
        self, hf: Holdfast, witness: Any, seen: Instruments
    ) -> None:
        hf.table(QUEUE)(handle)
        await add(witness, "good", "good", "bad")
        await add(witness, "bad", attempts=4)
        await ends(hf.run(mode="drain", signals=False))
        queue = ("queue", "email_snoozes")
        worker = ("worker", hf.queue_manager.id)
        values = {
            name: {key: point.value for key, point in seen.points(name).items()}
            for name in ("queue.claimed", "queue.processed", "queue.failed", "queue.retired")
        }
        assert values == {
            "queue.claimed": {(queue, worker): 4},
            "queue.processed": {(queue,): 2},
            "queue.failed": {(("error", "ValueError"), queue): 2},
            "queue.retired": {(queue,): 1},
        }
        [(attributes, duration)] = seen.points("queue.job_duration_ms").items()
        assert attributes == (queue,)
        assert duration.count == 4

    async def test_show_how_full_the_queue_is(
        self, hf: Holdfast, witness: Any, seen: Instruments
    ) -> None:
        await hf.install()
        await hf.queries.enqueue(["greet"] * 3, [None] * 3)
        assert hf._telemetry is not None
        await look(hf.sources(), hf._telemetry)
        metrics = seen.metrics()
        units = {name: metrics[name].unit for name in ("queue.depth", "queue.oldest_age_s")}
        assert units == {"queue.depth": "1", "queue.oldest_age_s": "s"}
        depths = {key: point.value for key, point in seen.points("queue.depth").items()}
        assert depths == {(("queue", "greet"), ("status", "queued")): 3}

    async def test_are_looked_for_by_a_worker(
        self, hf: Holdfast, seen: Instruments, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gauges, "_FIRST", 0.0)
        await hf.install()
        hf.entrypoint("greet")(handle)
        await hf.queries.enqueue("greet", execute_after=timedelta(days=1))

        async def gauged() -> bool:
            return "queue.depth" in seen.metrics()

        async with working(hf, signals=False):
            await eventually(gauged)
        depths = {key: point.value for key, point in seen.points("queue.depth").items()}
        assert depths == {(("queue", "greet"), ("status", "queued")): 1}

    async def test_show_how_full_a_table_is(
        self, hf: Holdfast, witness: Any, seen: Instruments
    ) -> None:
        claimed, over = asyncio.Event(), asyncio.Event()

        @hf.table(QUEUE)
        async def wait(row: dict[str, Any]) -> None:
            claimed.set()
            await over.wait()

        await add(witness, "one", "two", "three")
        await add(witness, "done", inactive=True)
        await witness.execute("update email_snoozes set remind_at = now() - interval '1 minute'")
        async with working(hf, signals=False, concurrency=1, batch_size=1):
            await asyncio.wait_for(claimed.wait(), 30)
            assert hf._telemetry is not None
            # No table of Holdfast's own is there, nor asked for.
            await look(hf.sources(), hf._telemetry)
            depths = {key: point.value for key, point in seen.points("queue.depth").items()}
            [(attributes, oldest)] = seen.points("queue.oldest_age_s").items()
            over.set()
        name = ("queue", "email_snoozes")
        assert depths == {(name, ("status", "queued")): 2, (name, ("status", "picked")): 1}
        assert attributes == (name,)
        assert oldest.value >= 60

    async def test_show_tables_beside_the_queue(
        self, hf: Holdfast, witness: Any, seen: Instruments
    ) -> None:
        await hf.install()
        hf.table(QUEUE)(handle)
        hf.entrypoint("greet")(handle)
        await hf.queries.enqueue("greet")
        await add(witness, "one")
        assert hf._telemetry is not None
        await look(hf.sources(), hf._telemetry)
        waiting = {
            dict(key)["queue"]: point.value
            for key, point in seen.points("queue.depth").items()
            if ("status", "queued") in key
        }
        assert waiting == {"greet": 1, "email_snoozes": 1}


class TestTheSumOfAllOutcomes:
    """claimed = processed + failed + released + lost + in flight, whenever nothing moves."""

    async def test_is_what_was_claimed(self, hf: Holdfast, witness: Any, seen: Instruments) -> None:
        gates = {subject: asyncio.Event() for subject in ("good", "bad", "taken", "held up")}

        @hf.table(QUEUE)
        async def wait(row: dict[str, Any]) -> None:
            await gates[row["subject"]].wait()
            await handle(row)

        for subject, count in (("good", 5), ("bad", 4), ("taken", 3), ("held up", 2)):
            await add(witness, *[subject] * count)
        watch = Watch(hf)
        async with working(hf, signals=False, drain_timeout=timedelta(0)):
            await watch.until(lambda: sum(len(event.jobs) for event in watch.claims) == 14)
            assert (seen.total("queue.claimed"), seen.in_flight()) == (14, 14)
            gates["good"].set()
            await watch.until_settled(5)
            assert (seen.total("queue.processed"), seen.in_flight()) == (5, 9)
            gates["bad"].set()
            await watch.until_settled(9)
            assert (seen.total("queue.failed"), seen.in_flight()) == (4, 5)
            await witness.execute(
                "update email_snoozes set claim_token = null, claimed_at = null, claimed_by = null,"
                " remind_at = 'infinity' where subject = 'taken'"
            )
            gates["taken"].set()
            await watch.until_lost(3)
            assert (seen.total("queue.lease_lost"), seen.in_flight()) == (3, 2)
        assert (seen.total("queue.released"), seen.in_flight()) == (2, 0)
        assert seen.counts() == {
            "claimed": 14,
            "processed": 5,
            "failed": 4,
            "released": 2,
            "lease_lost": 3,
        }


class TestTheSpan:
    async def test_of_a_row_has_the_attributes_of_the_article(
        self, hf: Holdfast, witness: Any, seen: Instruments
    ) -> None:
        tokens: list[str] = []

        @hf.table(QUEUE)
        async def remember(row: dict[str, Any], context: Context) -> None:
            tokens.append(str(context.job.claim_token))
            await handle(row)

        await add(witness, "good", "bad")
        await ends(hf.run(mode="drain", signals=False))
        good, bad = seen.runs()
        for number, span in enumerate((good, bad), start=1):
            attributes = dict(span.attributes or {})
            assert (span.name, span.kind) == ("queue.process", SpanKind.CONSUMER)
            assert attributes == {
                "queue": "email_snoozes",
                "worker": hf.queue_manager.id,
                "job.id": number,
                "job.claim_token": tokens[0],
            }
        assert good.status.status_code is StatusCode.UNSET
        assert (bad.status.status_code, bad.status.description) == (StatusCode.ERROR, "ValueError")
        assert "no such mailbox" not in bad.to_json()

    async def test_of_a_job_continues_the_trace_of_its_enqueue(
        self, hf: Holdfast, seen: Instruments
    ) -> None:
        await hf.install()
        headers: list[Any] = []
        current: list[Any] = []

        @hf.entrypoint("greet")
        async def greet(job: Job) -> None:
            headers.append(job.headers)
            current.append(trace.get_current_span().get_span_context())

        tracer = seen.tracers.get_tracer("a web application")
        with tracer.start_as_current_span("a request") as request:
            await hf.queries.enqueue("greet", headers={"tenant": "7"})
        await hf.queries.enqueue("greet")
        await ends(hf.run(mode="drain", signals=False))
        asked = request.get_span_context()
        spans = seen.runs()
        parents = [span.parent.span_id for span in spans if span.parent is not None]
        assert parents[0] == asked.span_id
        assert spans[0].context.trace_id == asked.trace_id
        [claim] = [span for span in seen.spans.get_finished_spans() if span.name == "queue.claim"]
        assert parents[1] == claim.context.span_id
        assert spans[1].context.trace_id == claim.context.trace_id != asked.trace_id
        assert {span.context.span_id for span in spans} == {one.span_id for one in current}
        [with_tenant] = [found for found in headers if found and "tenant" in found]
        assert with_tenant["tenant"] == "7"
        assert with_tenant["traceparent"].split("-")[1] == f"{asked.trace_id:032x}"

    async def test_does_not_change_how_many_handlers_a_thread_pool_runs(
        self, hf: Holdfast, witness: Any
    ) -> None:
        hf.table(QUEUE, executor="thread")(lambda row: None)
        plain = {one.name: one.executor for one in hf._registry}
        traced = {one.name: one.executor for one in hf._traced_registry()}
        assert getattr(plain["email_snoozes"], "capacity", 0) > 0
        for name, executor in plain.items():
            assert getattr(traced[name], "capacity", 0) == getattr(executor, "capacity", 0)


def python(source: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source, *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_opentelemetry_is_not_loaded_unless_it_is_used() -> None:
    loaded = python(
        "import asyncio, sys\n"
        "import holdfast, holdfast.cli\n"
        "async def main():\n"
        "    hf = holdfast.Holdfast.in_memory()\n"
        "    async def greet(job): print('ran')\n"
        "    hf.entrypoint('greet')(greet)\n"
        "    await hf.queries.enqueue('greet')\n"
        "    await hf.run(mode='drain')\n"
        "asyncio.run(main())\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    assert loaded.split("\n")[:2] == ["ran", "[]"]


THEIRS = """
import asyncio, sys, time
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from holdfast import Holdfast
from holdfast.telemetry.otel import OpenTelemetry

metrics.set_meter_provider(
    MeterProvider([PeriodicExportingMetricReader(ConsoleMetricExporter())])
)
spans = TracerProvider()
spans.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter()))
trace.set_tracer_provider(spans)
meter, tracer = metrics.get_meter("their-worker"), trace.get_tracer("their-worker")
counts = {
    name: meter.create_counter(f"queue.{name}", unit="1")
    for name in ("claimed", "processed", "failed", "stale_recovered", "retired")
}
took = meter.create_histogram("queue.job_duration_ms", unit="ms")

counts["claimed"].add(8, {"queue": "theirs", "worker": "w"})
for number in range(8):
    about = {"queue": "theirs", "worker": "w", "job.id": number, "job.claim_token": str(number)}
    with tracer.start_as_current_span("queue.process", attributes=about):
        if number % 4:
            counts["processed"].add(1, {"queue": "theirs"})
        else:
            counts["failed"].add(1, {"queue": "theirs", "error": "RuntimeError"})
        took.record(1.5, {"queue": "theirs"})

async def work():
    async with Holdfast.connect(sys.argv[1]) as hf:
        hf.instrument(OpenTelemetry())

        @hf.table("email_snoozes")
        async def handle(row):
            assert row["subject"] == "good"

        await hf.run(mode="drain")

asyncio.run(work())
metrics.get_meter_provider().shutdown()
spans.shutdown()
"""
"""A program that counts a queue of its own by the same names, beside a worker of ours."""


async def test_a_program_with_instruments_of_its_own_runs_beside_ours(
    pg18: Database, witness: Any
) -> None:
    await witness.execute(SNOOZES.ddl)
    await add(witness, "good", "bad")
    out = await asyncio.to_thread(python, THEIRS, pg18.dsn)
    last = _objects(out)[-1]
    scopes = {
        scope["scope"]["name"]: {
            metric["name"]: sum(
                point.get("value", point.get("count", 0)) for point in metric["data"]["data_points"]
            )
            for metric in scope["metrics"]
        }
        for resource in last["resource_metrics"]
        for scope in resource["scope_metrics"]
    }
    theirs, ours = scopes["their-worker"], scopes["holdfast"]
    assert (theirs["queue.claimed"], theirs["queue.processed"], theirs["queue.failed"]) == (8, 6, 2)
    assert (ours["queue.claimed"], ours["queue.processed"], ours["queue.failed"]) == (2, 1, 1)
    assert len(re.findall(r'"name": "queue.process"', out)) == 10


def _objects(text: str) -> list[Any]:
    """The metrics exports among what the console exporters wrote."""
    decoder, place, found = json.JSONDecoder(), 0, []
    while (place := text.find("{", place)) >= 0:
        value, place = decoder.raw_decode(text, place)
        if "resource_metrics" in value:
            found.append(value)
    return found


async def test_a_quiet_worker_has_nothing_in_flight(
    hf: Holdfast, witness: Any, seen: Instruments
) -> None:
    hf.table(QUEUE)(handle)
    await add(witness, *["good", "bad"] * 10)
    watch = Watch(hf)
    async with working(hf, signals=False):
        await watch.until_settled(20)
        await eventually(lambda: _idle(hf))
        assert seen.in_flight() == 0


async def _idle(hf: Holdfast) -> bool:
    return hf.queue_manager.running == 0
