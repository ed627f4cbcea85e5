"""Records many values of a histogram in one step.

The API of OpenTelemetry records one value a call, and a call takes 8 µs, more than half of what
a worker needs for a whole job. So the first value of a batch goes through the API, and the others
are added to the aggregation that it was counted in. This is the only file that relies on internals
of the SDK. Where they are not as expected (another version, another kind of aggregation, an
instrument of another SDK), every value goes through the API.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.metrics import Histogram

_PLAIN_BUCKETS = "_ExplicitBucketHistogramAggregation"
"""By its name, because an import of it could fail with another version of the SDK."""


def record_all(
    histogram: Histogram, values: Sequence[float], attributes: Mapping[str, str]
) -> None:
    """Record every value, as `histogram.record` would one by one. They must not be negative."""
    if not values:
        return
    histogram.record(values[0], attributes)
    rest = values[1:]
    if rest and not _added(histogram, rest, attributes):
        for value in rest:
            histogram.record(value, attributes)


def _added(histogram: Any, values: Sequence[float], attributes: Mapping[str, str]) -> bool:
    """Add the values to all aggregations of the series, or to none and return False."""
    instrument = getattr(histogram, "_real_instrument", None) or histogram
    with ExitStack() as locks:
        try:
            aggregations = _locked_aggregations(instrument, attributes, locks)
        except (AttributeError, LookupError, TypeError, ValueError):
            return False
        for aggregation in aggregations:
            _add(aggregation, values)
    return True


def _locked_aggregations(
    instrument: Any, attributes: Mapping[str, str], locks: ExitStack
) -> list[Any]:
    """Find the aggregation in each reader and view, and lock it as the SDK does.

    A collection that discards its aggregations takes the first lock, so nothing is added to one
    that was exported already.
    """
    found = []
    for storage in list(instrument._measurement_consumer._reader_storages.values()):
        for match in storage._get_or_init_view_instrument_match(instrument):
            locks.enter_context(match._lock)
            keys = match._view._attribute_keys
            wanted = {k: v for k, v in attributes.items() if keys is None or k in keys}
            aggregations = match._attributes_aggregation.values()
            [aggregation] = [each for each in aggregations if each._attributes == wanted]
            if type(aggregation).__name__ != _PLAIN_BUCKETS:
                raise LookupError
            locks.enter_context(aggregation._lock)
            _check(aggregation)
            found.append(aggregation)
    return found


def _check(aggregation: Any) -> None:
    """Raise if the state is not as this file knows it."""
    state = (aggregation._sum, aggregation._min, aggregation._max)
    if not all(isinstance(each, (int, float)) for each in state):
        raise TypeError
    if len(aggregation._value) != len(aggregation._boundaries) + 1:
        raise LookupError


def _add(aggregation: Any, values: Sequence[float]) -> None:
    least, most = min(values), max(values)
    aggregation._sum += sum(values)
    aggregation._min = min(aggregation._min, least)
    aggregation._max = max(aggregation._max, most)
    bounds, counts = aggregation._boundaries, aggregation._value
    first, last = bisect_left(bounds, least), bisect_left(bounds, most)
    if first == last:
        counts[first] += len(values)
        return
    for value in values:
        counts[bisect_left(bounds, value, first, last)] += 1
