"""Telemetry of many jobs at once: what is counted, timed and sampled of a batch."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    ParentBased,
    Sampler,
    SamplingResult,
)
from opentelemetry.trace import SpanKind

from holdfast import Context, Holdfast, InvalidInput, Job, NewJob, Queries
from holdfast.clock import ManualClock
from holdfast.events import Observers, Settled
from holdfast.models import Cancellation, ClaimRule, Failed, Released, Succeeded
from holdfast.settings import WorkerSettings
from holdfast.telemetry.otel import OpenTelemetry
from holdfast.worker.leases import LeaseSet
from holdfast.worker.quarantine import Quarantine
from holdfast.worker.sweep import Sweeper
from holdfast.worker.upkeep import UpkeepDuty
from tests.worker.workers import ends

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.sdk.trace import ReadableSpan

    from holdfast.models import Outcome

MANY = 100
SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = "00-1af7651916cd43dd8448eb211c80319c-c7ad6b7169203331-00"


class Asked(Sampler):
    """Answers as another sampler does, and remembers what it was asked about."""

    def __init__(self, inner: Sampler) -> None:
        self._inner = inner
        self.names: list[str] = []

    def should_sample(
        self, parent_context: Any, trace_id: int, name: str, *rest: Any, **named: Any
    ) -> SamplingResult:
        self.names.append(name)
        return self._inner.should_sample(parent_context, trace_id, name, *rest, **named)

    def get_description(self) -> str:
        return "Asked"


class TracedWorker:
    """A worker in memory, whose handlers note the span they run in."""

    def __init__(self, root: Sampler, **options: Any) -> None:
        self.sampler = Asked(ParentBased(root))
        self._spans, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self._tracers = TracerProvider(sampler=self.sampler)
        self._tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.hf = Holdfast.in_memory()
        self.telemetry = OpenTelemetry(MeterProvider([self._reader]), self._tracers, **options)
        self.hf.instrument(self.telemetry)
        self.contexts: list[trace.SpanContext] = []

        @self.hf.entrypoint("mail", on_failure="hold")
        async def mail(job: Job) -> None:
            self.contexts.append(trace.get_current_span().get_span_context())
            with self._tracers.get_tracer("a library").start_as_current_span("inside"):
                pass
            if job.payload == b"bad":
                raise ValueError

        @self.hf.entrypoint("text")
        async def text(job: Job) -> None:
            pass

    async def drain(self) -> None:
        await ends(self.hf.run(mode="drain", signals=False, batch_size=2 * MANY, concurrency=1000))

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._spans.get_finished_spans() if span.name == name]

    def points(self, name: str) -> dict[frozenset[tuple[str, Any]], Any]:
        data = self._reader.get_metrics_data()
        assert data is not None
        return {
            frozenset((point.attributes or {}).items()): point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        }

    def values(self, name: str) -> dict[frozenset[tuple[str, Any]], Any]:
        return {attributes: point.value for attributes, point in self.points(name).items()}

    async def add(
        self, count: int, name: str = "mail", *, headers: Mapping[str, str] | None = None
    ) -> None:
        await self.hf.queries.enqueue([name] * count, [None] * count, headers=[headers] * count)


def of(**attributes: str) -> frozenset[tuple[str, Any]]:
    return frozenset(attributes.items())


async def test_every_job_of_a_batch_is_counted_under_its_queue_and_outcome() -> None:
    traced = TracedWorker(ALWAYS_OFF)
    await traced.add(MANY)
    await traced.add(MANY // 2, "text")
    await traced.hf.queries.enqueue(["mail"] * 3, [b"bad"] * 3)

    await traced.drain()

    worker = traced.hf.queue_manager.id
    assert traced.values("queue.claimed") == {
        of(queue="mail", worker=worker): MANY + 3,
        of(queue="text", worker=worker): MANY // 2,
    }
    assert traced.values("queue.processed") == {of(queue="mail"): MANY, of(queue="text"): MANY // 2}
    assert traced.values("queue.failed") == {of(queue="mail", error="ValueError"): 3}


async def test_outcomes_that_were_written_together_are_counted_apart() -> None:
    traced = TracedWorker(ALWAYS_OFF)
    ids = await traced.hf.queries.enqueue(["mail"] * 4, [None] * 4)
    jobs = await traced.hf.store.jobs.get([one for one in ids if one is not None])
    outcomes: tuple[Outcome, ...] = (
        Succeeded(),
        Released("shutdown"),
        Succeeded(),
        Failed("no", None),
    )

    traced.telemetry.notify(
        Settled("w", [(job, outcome, 0.1) for job, outcome in zip(jobs, outcomes, strict=True)])
    )

    assert traced.values("queue.processed") == {of(queue="mail"): 2}
    assert traced.values("queue.released") == {of(queue="mail"): 1}
    assert traced.values("queue.failed") == {of(queue="mail", error="unknown"): 1}


async def test_recovered_and_retired_jobs_are_counted_by_queue() -> None:
    traced = TracedWorker(ALWAYS_OFF)
    lease = timedelta(seconds=30)
    clock = ManualClock()
    hf = Holdfast.in_memory(clock=clock)
    store = hf.store
    new = [NewJob("mail"), NewJob("mail"), NewJob("text", max_recoveries=1)]
    await Queries(store).enqueue_many(new)
    rules = [ClaimRule("mail", lease), ClaimRule("text", lease)]
    await store.leases.claim(rules, limit=9, worker="dead")
    clock.advance(lease)

    observers = Observers([traced.telemetry])
    lease_set = LeaseSet()
    settings = WorkerSettings()
    duty = UpkeepDuty(None, lease_set, settings, "w")
    sweeper = Sweeper(
        hf.sources(), rules, settings, lease_set, observers, "w", Quarantine(lease_set), duty
    )
    await sweeper.sweep()
    [_] = await store.leases.claim_recovered(rules, limit=1, worker="dead", suspects=True)
    clock.advance(lease)
    await sweeper.sweep()

    assert traced.values("queue.stale_recovered") == {of(queue="mail"): 2, of(queue="text"): 1}
    assert traced.values("queue.retired") == {of(queue="text"): 1}


@pytest.mark.parametrize("name", ["queue.job_duration_ms", "queue.wait_ms"])
async def test_every_job_is_timed(name: str) -> None:
    traced = TracedWorker(ALWAYS_OFF)
    await traced.add(MANY)
    await traced.add(1, "text")

    await traced.drain()

    counts = {attributes: point.count for attributes, point in traced.points(name).items()}
    assert counts == {of(queue="mail"): MANY, of(queue="text"): 1}


async def test_of_a_large_batch_as_many_are_timed_as_was_asked_for() -> None:
    traced = TracedWorker(ALWAYS_OFF, timed=10)
    await traced.add(MANY)
    await traced.add(1, "text")

    await traced.drain()

    counts = {at: point.count for at, point in traced.points("queue.wait_ms").items()}
    assert counts == {of(queue="mail"): 10, of(queue="text"): 1}


def test_that_none_are_timed_cannot_be_asked_for() -> None:
    with pytest.raises(InvalidInput, match="at least 1, got 0"):
        OpenTelemetry(timed=0)


async def test_a_claim_is_a_span_that_says_how_many_jobs_it_found() -> None:
    traced = TracedWorker(ALWAYS_ON)
    await traced.add(MANY)
    await traced.add(2, "text")

    await traced.drain()

    spans = traced.spans("queue.claim")
    worker = traced.hf.queue_manager.id
    assert [dict(span.attributes or {}) for span in spans] == [
        {"queue": "mail", "worker": worker, "job.count": MANY},
        {"queue": "text", "worker": worker, "job.count": 2},
    ]
    assert {span.kind for span in spans} == {SpanKind.CLIENT}
    assert len(traced.spans("queue.process")) == MANY + 2


async def test_the_sampler_is_asked_once_about_the_jobs_of_a_claim_that_it_does_not_want() -> None:
    traced = TracedWorker(ALWAYS_OFF)
    await traced.add(MANY, "text")

    await traced.drain()

    assert traced.sampler.names == ["queue.claim", "queue.process"]


async def test_the_jobs_of_the_next_claim_are_asked_about_again() -> None:
    traced = TracedWorker(ALWAYS_OFF)
    for _ in range(2):
        await traced.add(MANY)
        await traced.drain()

    assert traced.sampler.names.count("queue.process") == 2
    traces = [context.trace_id for context in traced.contexts]
    assert len(set(traces[:MANY])) == len(set(traces[MANY:])) == 1
    assert traces[0] != traces[MANY]


async def test_the_sampler_is_asked_once_about_the_jobs_of_a_trace_that_it_does_not_want() -> None:
    traced = TracedWorker(ALWAYS_ON)
    await traced.add(MANY, "text", headers={"traceparent": UNSAMPLED})

    await traced.drain()

    assert traced.sampler.names == ["queue.claim", "queue.process"]


async def test_nothing_inside_a_job_is_sampled_when_the_job_is_not() -> None:
    traced = TracedWorker(ALWAYS_OFF)
    await traced.add(3)

    await traced.drain()

    assert [context.trace_flags.sampled for context in traced.contexts] == [False] * 3
    assert all(context.is_valid for context in traced.contexts)
    assert traced.spans("inside") == []


async def test_a_job_of_a_sampled_trace_has_its_span_whatever_became_of_the_others() -> None:
    traced = TracedWorker(ALWAYS_OFF)
    await traced.add(3)
    await traced.add(2, headers={"traceparent": UNSAMPLED})
    await traced.add(2, headers={"traceparent": SAMPLED, "tenant": "7"})
    await traced.add(2, headers={"traceparent": UNSAMPLED})

    await traced.drain()

    spans = traced.spans("queue.process")
    assert [f"{span.context.trace_id:032x}" for span in spans] == [SAMPLED.split("-")[1]] * 2
    assert len({span.context.span_id for span in spans}) == 2
    assert len(traced.spans("inside")) == 2


async def test_an_unsampled_job_still_carries_the_trace_of_its_enqueue() -> None:
    traced = TracedWorker(ALWAYS_ON)
    await traced.add(3, headers={"traceparent": UNSAMPLED})

    await traced.drain()

    assert [f"{one.trace_id:032x}" for one in traced.contexts] == [UNSAMPLED.split("-")[1]] * 3
    assert traced.spans("queue.process") == []
    assert traced.spans("inside") == []


async def test_headers_without_a_trace_leave_the_job_in_the_trace_of_its_claim() -> None:
    traced = TracedWorker(ALWAYS_ON)
    await traced.add(2, headers={"tenant": "7"})

    await traced.drain()

    [claim] = traced.spans("queue.claim")
    parents = [span.parent.span_id for span in traced.spans("queue.process") if span.parent]
    assert parents == [claim.context.span_id] * 2


@pytest.mark.parametrize("payload", [b"good", b"bad"])
async def test_a_handler_leaves_no_span_behind_in_its_task(payload: bytes) -> None:
    traced = TracedWorker(ALWAYS_ON)
    [job_id] = await traced.hf.queries.enqueue("mail", payload)
    assert job_id is not None
    [job] = await traced.hf.store.jobs.get([job_id])
    [entrypoint] = [one for one in traced.hf._traced_registry() if one.name == "mail"]

    with suppress(ValueError):
        await entrypoint.executor.execute(job, Context(job, {}, Cancellation()))

    [inside] = traced.contexts
    assert inside.is_valid
    assert not trace.get_current_span().get_span_context().is_valid
