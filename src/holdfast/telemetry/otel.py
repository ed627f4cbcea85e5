"""OpenTelemetry at the claim and at the outcome. The only file that imports it.

Claims are counted when they are made, outcomes when they are in the database, so that
claimed = processed + failed + released + lost + in flight.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, assert_never

from opentelemetry import metrics, propagate, trace
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode

from holdfast.errors import MissingDependency, RetryRequested
from holdfast.events import Claimed, Event, Lost, Recovered, Retired, Settled
from holdfast.models import Abandoned, Failed, Parked, Released, Retried, Succeeded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from holdfast.models import Context, Job, Outcome
    from holdfast.ports import Executor

SCOPE = "holdfast"
_BREAKER_STATES = {"closed": 0, "half_open": 1, "open": 2}


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


class OpenTelemetry:
    """Observes a worker, and puts a span around every handler.

    Without arguments it uses the global providers, which the application sets up.
    """

    def __init__(self, meter_provider: Any = None, tracer_provider: Any = None) -> None:
        meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
        self._claimed = meter.create_counter("queue.claimed", "1", "Rows claimed from the queue")
        self._processed = meter.create_counter(
            "queue.processed", "1", "Rows processed successfully"
        )
        self._failed = meter.create_counter("queue.failed", "1", "Rows that failed processing")
        self._released = meter.create_counter(
            "queue.released", "1", "Rows handed back without counting"
        )
        self._lost = meter.create_counter("queue.lease_lost", "1", "Outcomes that came too late")
        self._recovered = meter.create_counter(
            "queue.stale_recovered", "1", "Rows recovered from stale claims"
        )
        self._retired = meter.create_counter(
            "queue.retired", "1", "Rows retired after exceeding max attempts"
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
            case Claimed(worker, jobs):
                for job in jobs:
                    self._claimed.add(1, {"queue": job.entrypoint, "worker": worker})
                    if job.claimed_at is not None:
                        waited = (job.claimed_at - job.execute_after).total_seconds() * 1000
                        self._wait.record(max(0.0, waited), {"queue": job.entrypoint})
            case Settled(_, job, outcome, seconds):
                self._settle(job.entrypoint, outcome)
                self._duration.record(seconds * 1000, {"queue": job.entrypoint})
            case Lost(_, job, _):
                self._lost.add(1, {"queue": job.entrypoint})
            case Recovered(_, ids):
                self._recovered.add(len(ids))
            case Retired(_, ids, _):
                self._retired.add(len(ids))
            case _:
                assert_never(event)

    def _settle(self, queue: str, outcome: Outcome) -> None:
        match outcome:
            case Succeeded():
                self._processed.add(1, {"queue": queue})
            case Retried(traceback=record) | Failed(traceback=record) | Parked(traceback=record):
                error = record.exception_type if record else "unknown"
                self._failed.add(1, {"queue": queue, "error": error})
            case Released():
                self._released.add(1, {"queue": queue})
            case Abandoned():
                self._lost.add(1, {"queue": queue})
            case _:
                assert_never(outcome)

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
        return _TracedExecutor(executor, self._tracer, worker)


@dataclass(frozen=True, slots=True)
class _TracedExecutor:
    inner: Executor
    tracer: trace.Tracer
    worker: str

    @property
    def capacity(self) -> int:
        found: int = getattr(self.inner, "capacity", 0)
        return found

    async def execute(self, job: Job, context: Context) -> None:
        parent = propagate.extract(_texts(job.headers))
        with self.tracer.start_as_current_span(
            "queue.process",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes={
                "queue": job.entrypoint,
                "worker": self.worker,
                "job.id": job.id if isinstance(job.id, int) else str(job.id),
                # Whole tokens are capabilities: enough of it to tell leases apart.
                "job.claim_token": str(job.claim_token)[:8],
            },
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                await self.inner.execute(job, context)
            except BaseException as error:
                # The message may hold what must not leave the database; its type may not.
                told = error.__cause__ if isinstance(error, RetryRequested) else None
                span.set_status(Status(StatusCode.ERROR, type(told or error).__name__))
                raise


def _texts(headers: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: value for name, value in (headers or {}).items() if isinstance(value, str)}
