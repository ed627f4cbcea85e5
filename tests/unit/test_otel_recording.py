"""Many values of a histogram are recorded in one step, with the same result as one by one."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.metrics._internal import _ProxyMeterProvider
from opentelemetry.sdk.metrics import Histogram as HistogramKind
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.metrics.view import (
    DropAggregation,
    ExplicitBucketHistogramAggregation,
    ExponentialBucketHistogramAggregation,
    View,
)

from holdfast.telemetry.batches import _added, record_all

OF_MAIL = {"queue": "mail"}
DELTA = {HistogramKind: AggregationTemporality.DELTA}
VIEWS: dict[str, list[View]] = {
    "as it comes": [],
    "other bounds": [
        View(instrument_name="took", aggregation=ExplicitBucketHistogramAggregation((1.0, 7.0)))
    ],
    "without attributes": [View(instrument_name="took", attribute_keys=set())],
    "twice": [View(instrument_name="took"), View(instrument_name="took", name="again")],
    "exponential": [
        View(instrument_name="took", aggregation=ExponentialBucketHistogramAggregation())
    ],
    "dropped": [View(instrument_name="took", aggregation=DropAggregation())],
}


def seen(reader: InMemoryMetricReader) -> list[dict[str, Any]]:
    """The data points without their times."""
    data = reader.get_metrics_data()
    metrics: list[Any] = [
        metric
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ]
    points = []
    for metric in metrics:
        for point in metric.data.data_points:
            shown = {k: getattr(point, k) for k in ("attributes", "count", "min", "max")}
            shown["sum"] = round(point.sum, 6)
            counts = getattr(point, "bucket_counts", None)
            points.append(shown | {"name": metric.name, "counts": counts})
    return points


class Pair:
    """Two SDKs of the same make: one records values together, the other one by one."""

    def __init__(self, views: list[View], delta: bool) -> None:
        options: dict[str, Any] = {"preferred_temporality": DELTA} if delta else {}
        self.readers = [InMemoryMetricReader(**options) for _ in range(4)]
        meters = [
            MeterProvider(self.readers[:2], views=views),
            MeterProvider(self.readers[2:], views=views),
        ]
        self.together, self.singly = [m.get_meter("x").create_histogram("took") for m in meters]

    def record(self, values: list[float], attributes: dict[str, str]) -> None:
        record_all(self.together, values, attributes)
        for value in values:
            self.singly.record(value, attributes)

    def assert_alike(self) -> None:
        first, second, third, fourth = map(seen, self.readers)
        assert first == second == third == fourth


@pytest.mark.parametrize("delta", [False, True], ids=["cumulative", "delta"])
@pytest.mark.parametrize("views", VIEWS.values(), ids=VIEWS)
def test_batches_are_recorded_like_single_values(views: list[View], delta: bool) -> None:
    pair = Pair(views, delta)
    for _ in range(3):
        pair.record([random.expovariate(0.1) for _ in range(500)], OF_MAIL)
        pair.record([0.0, 0.0, 5.0, 5.0], {"queue": "text"})
        pair.record([3.0], OF_MAIL)
        pair.record([], OF_MAIL)
        pair.assert_alike()


@pytest.mark.parametrize(("views", "fast"), [("as it comes", True), ("exponential", False)])
def test_only_plain_buckets_are_filled_in_one_step(views: str, fast: bool) -> None:
    pair = Pair(VIEWS[views], delta=False)
    pair.together.record(1.0, OF_MAIL)
    assert _added(pair.together, [1.0, 2.0], OF_MAIL) is fast


class Different:
    """The measurement consumer of an SDK that keeps its aggregations under another name."""

    def __init__(self, real: Any) -> None:
        self.consume_measurement = real.consume_measurement


def test_an_sdk_that_looks_different_is_called_for_each_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = InMemoryMetricReader()
    histogram: Any = MeterProvider([reader]).get_meter("x").create_histogram("took")
    different = Different(histogram._measurement_consumer)
    monkeypatch.setattr(histogram, "_measurement_consumer", different)
    record_all(histogram, [1.0, 2.0, 3.0], OF_MAIL)
    assert not _added(histogram, [4.0], OF_MAIL)
    [point] = seen(reader)
    assert (point["count"], point["sum"]) == (3, 6.0)


def test_no_value_is_lost_or_doubled_while_readers_collect() -> None:
    reader = InMemoryMetricReader(preferred_temporality=DELTA)  # type: ignore[arg-type]
    histogram = MeterProvider([reader]).get_meter("x").create_histogram("took")
    counted = 0

    def fill() -> None:
        for _ in range(2000):
            record_all(histogram, [1.0] * 10, OF_MAIL)

    thread = threading.Thread(target=fill)
    thread.start()
    while thread.is_alive():
        counted += sum(point["count"] for point in seen(reader))
    thread.join()
    counted += sum(point["count"] for point in seen(reader))
    assert counted == 20_000


def test_instruments_without_an_sdk_are_left_alone() -> None:
    for provider in (NoOpMeterProvider(), _ProxyMeterProvider()):
        record_all(provider.get_meter("x").create_histogram("took"), [1.0, 2.0], OF_MAIL)


def test_an_instrument_made_before_its_provider_is_found() -> None:
    proxies = _ProxyMeterProvider()
    histogram = proxies.get_meter("x").create_histogram("took")
    reader = InMemoryMetricReader()
    proxies.on_set_meter_provider(MeterProvider([reader]))
    record_all(histogram, [1.0, 2.0], OF_MAIL)
    assert _added(histogram, [3.0], OF_MAIL)
    [point] = seen(reader)
    assert point["count"] == 3
