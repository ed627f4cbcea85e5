"""OpenTelemetry at the claim and at the outcome. With batches.py the only file that imports it.

Claims are counted when they are made, outcomes when they are in the database, so that
claimed = processed + failed + released + lost + in flight. The SDK takes microseconds for each
call, as long as a job of a fast queue: it is called for each batch, not for each job.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, assert_never

from opentelemetry import context as contexts
from opentelemetry import metrics, propagate, trace
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from holdfast.errors import InvalidInput, MissingDependency
from holdfast.events import Claimed, Event, Lost, Recovered, Retired, Settled, StepFailed
from holdfast.models import Abandoned, Failed, Held, Released, Retried, Succeeded
from holdfast.retry import blamed
from holdfast.telemetry.batches import record_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from holdfast.events import Run
    from holdfast.models import Context, Executor, Job, Outcome

SCOPE = "holdfast"
_BREAKER_STATES = {"closed": 0, "half_open": 1, "open": 2}
_MILLISECOND = timedelta(milliseconds=1)
_REMEMBERED = 1000
"""Claims whose jobs may still be to be started."""

T = TypeVar("T")


@contextmanager
def exporting(environment: Mapping[str, str], service: str = "holdfast") -> Iterator[OpenTelemetry]:
    """Telemetry that is exported as the standard OTEL_* variables say, else to the console."""
    resource = Resource.create({"service.name": environment.get("OTEL_SERVICE_NAME", service)})
    metric_exporter = _exporter("metrics", environment)
    span_exporter = _exporter("traces", environment)
    readers = [PeriodicExportingMetricReader(metric_exporter)] if metric_exporter else []
    meters = MeterProvider(resource=resource, metric_readers=readers)
    tracers = TracerProvider(resource=resource)
    if span_exporter:
        tracers.add_span_processor(BatchSpanProcessor(span_exporter))
    metrics.set_meter_provider(meters)
    trace.set_tracer_provider(tracers)
    try:
        yield OpenTelemetry(meters, tracers)
    finally:
        meters.shutdown()
        tracers.shutdown()


def _exporter(signal: str, environment: Mapping[str, str]) -> Any:
    """The exporter that OTEL_METRICS_EXPORTER or OTEL_TRACES_EXPORTER names; None for `none`."""
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    endpoint = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    name = environment.get(variable) or ("otlp" if endpoint else "console")
    if name == "none":
        return None
    found = list(entry_points(group=f"opentelemetry_{signal}_exporter", name=name))
    if not found:
        raise MissingDependency(
            f"there is no {signal} exporter {name!r} ({variable}); for otlp run: "
            f"pip install opentelemetry-exporter-otlp"
        )
    return found[0].load()()


class _Refused(NamedTuple):
    """A job that the sampler refused. It refuses those with the same parent, too."""

    claim_token: UUID | None
    headers: Mapping[str, Any] | None
    context: contexts.Context
    """The context that its handler ran in."""


_Claims = dict[tuple[str, "UUID | None"], Span]
"""By queue and token: the parent of jobs without a trace of their own."""


class OpenTelemetry:
    """Observes a worker, and puts a span around every handler.

    Without arguments it uses the global providers, which the application sets up. `timed` asks for
    sampling: at most this many jobs of a queue go into the histograms for each batch that is
    claimed or settled, evenly spread. None means every job.
    """

    def __init__(
        self, meter_provider: Any = None, tracer_provider: Any = None, *, timed: int | None = None
    ) -> None:
        if timed is not None and timed < 1:
            raise InvalidInput(f"timed must be at least 1, got {timed!r}")
        self._timed = timed
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
        self._claims: _Claims = {}
        self._create_instruments(metrics.get_meter(SCOPE, meter_provider=meter_provider))

    def _create_instruments(self, meter: metrics.Meter) -> None:
        self._claimed = meter.create_counter("queue.claimed", "1", "Rows claimed from the queue")
        self._processed = meter.create_counter(
            "queue.processed", "1", "Rows processed successfully"
        )
        self._failed = meter.create_counter("queue.failed", "1", "Rows that failed processing")
        self._released = meter.create_counter(
            "queue.released", "1", "Jobs released without counting"
        )
        self._lost = meter.create_counter("queue.lease_lost", "1", "Outcomes that came too late")
        self._recovered = meter.create_counter(
            "queue.stale_recovered", "1", "Rows recovered from stale claims"
        )
        self._retired = meter.create_counter(
            "queue.retired", "1", "Rows retired after exceeding max attempts"
        )
        self._errors = meter.create_counter(
            "queue.worker_errors", "1", "Unexpected errors in the worker's own steps"
        )
        self._duration = meter.create_histogram(
            "queue.job_duration_ms", "ms", "Time spent processing a job"
        )
        self._wait = meter.create_histogram(
            "queue.wait_ms", "ms", "Time between being due and being claimed"
        )
        self._depths: list[tuple[str, str, int]] = []
        self._oldest: dict[str, float] = {}
        self._breakers: dict[str, int] = {}
        meter.create_observable_gauge("queue.depth", [self._see_depth], "1", "Rows by status")
        meter.create_observable_gauge(
            "queue.oldest_age_s", [self._see_oldest], "s", "How long the first due row has waited"
        )
        meter.create_observable_gauge(
            "queue.breaker_state",
            [self._see_breakers],
            "1",
            "0 closed, 1 half open, 2 open",
        )

    def notify(self, event: Event) -> None:
        match event:
            case Claimed(worker, jobs, seconds):
                self._claim(worker, jobs, seconds)
            case Settled(_, runs):
                self._settle(runs)
            case Lost(_, job, _):
                self._lost.add(1, {"queue": job.entrypoint})
            case Recovered(queues=queues):
                _add(self._recovered, queues)
            case Retired(queues=queues, runs=runs):
                _add(self._retired, queues)
                self._settle(runs)
            case StepFailed(_, step, _):
                self._errors.add(1, {"step": step})
            case _:
                assert_never(event)

    def _claim(self, worker: str, jobs: Sequence[Job], seconds: float) -> None:
        for (queue, token), batch in _batches(jobs).items():
            attributes = {"queue": queue, "worker": worker}
            self._claimed.add(len(batch), attributes)
            waits = [
                max(0.0, (job.claimed_at - job.execute_after) / _MILLISECOND)
                for job in self._spread(batch)
                if job.claimed_at is not None
            ]
            record_all(self._wait, waits, {"queue": queue})
            self._remember((queue, token), {**attributes, "job.count": len(batch)}, seconds)

    def _remember(
        self, key: tuple[str, UUID | None], attributes: Mapping[str, Any], seconds: float
    ) -> None:
        span = self._tracer.start_span(
            "queue.claim",
            context=contexts.Context(),
            kind=SpanKind.CLIENT,
            attributes=attributes,
            start_time=time.time_ns() - int(seconds * 1e9),
        )
        span.end()
        self._claims[key] = span
        if len(self._claims) > _REMEMBERED:
            del self._claims[next(iter(self._claims))]

    def _settle(self, runs: Sequence[Run]) -> None:
        by_queue: dict[str, list[Run]] = defaultdict(list)
        for run in runs:
            by_queue[run[0].entrypoint].append(run)
        for queue, some in by_queue.items():
            others = [outcome for _, outcome, _ in some if type(outcome) is not Succeeded]
            if len(others) < len(some):
                self._processed.add(len(some) - len(others), {"queue": queue})
            for (counter, error), count in Counter(map(self._counter, others)).items():
                counter.add(count, {"queue": queue, "error": error} if error else {"queue": queue})
            durations = [seconds * 1000 for _, _, seconds in self._spread(some)]
            record_all(self._duration, durations, {"queue": queue})

    def _counter(self, outcome: Outcome) -> tuple[metrics.Counter, str | None]:
        """Return the counter of an outcome, and the type of the exception behind it."""
        match outcome:
            case Succeeded():
                return self._processed, None
            case Retried(traceback=record) | Failed(traceback=record) | Held(traceback=record):
                return self._failed, record.exception_type if record else "unknown"
            case Released():
                return self._released, None
            case Abandoned():
                return self._lost, None
            case _:
                assert_never(outcome)

    def _spread(self, batch: Sequence[T]) -> Sequence[T]:
        """The jobs of a batch that go into the histograms."""
        if self._timed is None:
            return batch
        step = -(-len(batch) // self._timed)
        return batch[step // 2 :: step]

    def gauge(
        self,
        depths: Iterable[tuple[str, str, int]],
        oldest: Mapping[str, float],
        breakers: Mapping[str, str],
    ) -> None:
        self._depths = list(depths)
        self._oldest = dict(oldest)
        self._breakers = {name: _BREAKER_STATES.get(state, 2) for name, state in breakers.items()}

    def _see_depth(self, _: CallbackOptions) -> Iterable[Observation]:
        for queue, status, count in self._depths:
            yield Observation(count, {"queue": queue, "status": status})

    def _see_oldest(self, _: CallbackOptions) -> Iterable[Observation]:
        for queue, age in self._oldest.items():
            yield Observation(age, {"queue": queue})

    def _see_breakers(self, _: CallbackOptions) -> Iterable[Observation]:
        for name, state in self._breakers.items():
            yield Observation(state, {"breaker": name})

    def carry(self) -> Mapping[str, str]:
        """The current trace context as W3C headers, to travel with a job."""
        headers: dict[str, str] = {}
        propagate.inject(headers)
        return headers

    def traced(self, executor: Executor, worker: str) -> Executor:
        """The executor with a span around each handler, in the trace of its enqueue."""
        return _TracedExecutor(executor, self._tracer, self._claims, worker)


def _add(counter: metrics.Counter, queues: Mapping[str, int]) -> None:
    for queue, count in queues.items():
        counter.add(count, {"queue": queue})


def _batches(jobs: Sequence[Job]) -> dict[tuple[str, UUID | None], list[Job]]:
    """By queue and token. Most come in one piece, and tokens are slow to hash."""
    batches: dict[tuple[str, UUID | None], list[Job]] = {}
    queue, token, batch = "", None, []
    for job in jobs:
        if job.claim_token is not token or job.entrypoint != queue:
            queue, token = job.entrypoint, job.claim_token
            batch = batches.setdefault((queue, token), [])
        batch.append(job)
    return batches


@dataclass(slots=True)
class _TracedExecutor:
    inner: Executor
    tracer: trace.Tracer
    claims: _Claims
    worker: str
    refused: _Refused | None = None
    """The last job that was not sampled. The next one is most often of the same claim."""

    @property
    def capacity(self) -> int:
        return self.inner.capacity

    @property
    def limits_time(self) -> bool:
        return self.inner.limits_time

    @property
    def written_retries(self) -> int | None:
        return self.inner.written_retries

    async def execute(self, job: Job, context: Context) -> None:
        refused = self.refused
        if (
            refused is not None
            and refused.claim_token is job.claim_token
            and refused.headers == job.headers
        ):
            token = contexts.attach(refused.context)
            try:
                await self.inner.execute(job, context)
            finally:
                contexts.detach(token)
        else:
            await self._execute_in_span(job, context)

    async def _execute_in_span(self, job: Job, context: Context) -> None:
        parent = self._parent(job)
        span = self._start(job, parent)
        current = trace.set_span_in_context(span, parent)
        if not span.is_recording():
            self.refused = _Refused(job.claim_token, job.headers, current)
        token = contexts.attach(current)
        try:
            await self.inner.execute(job, context)
        except BaseException as error:
            # The message may hold what must not leave the database; its type may not.
            span.set_status(Status(StatusCode.ERROR, type(blamed(error)).__name__))
            raise
        finally:
            contexts.detach(token)
            span.end()

    def _parent(self, job: Job) -> contexts.Context:
        parent = contexts.Context()
        if job.headers:
            parent = propagate.extract(_texts(job.headers), parent)
        if trace.get_current_span(parent).get_span_context().is_valid:
            return parent
        claim = self.claims.get((job.entrypoint, job.claim_token))
        return parent if claim is None else trace.set_span_in_context(claim, parent)

    def _start(self, job: Job, parent: contexts.Context) -> Span:
        return self.tracer.start_span(
            "queue.process",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes={
                "queue": job.entrypoint,
                "worker": self.worker,
                "job.id": job.id if isinstance(job.id, int) else str(job.id),
                "job.claim_token": str(job.claim_token),
            },
        )


def _texts(headers: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: value for name, value in (headers or {}).items() if isinstance(value, str)}
