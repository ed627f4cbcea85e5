"""How long an idle worker takes from the call of enqueue to the start of the handler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.process import wait_until
from bench.results import percentile

if TYPE_CHECKING:
    from bench.contestants import Contestant
    from bench.stage import Stage

_WARM_UP = 20
_GAP = 0.02
_PATIENCE = 120.0


def latency(stage: Stage, subject: Contestant) -> dict[str, float]:
    probes = stage.sizes_of(subject).probes + _WARM_UP
    with (
        stage.database(subject) as database,
        stage.start(subject, database) as producer,
        stage.start(subject, database) as worker,
    ):
        # Seldom: telling the harness wakes it, and it takes a processor from those on the way.
        worker.ask("work", task="stamp", sample=0.25)
        producer.ask("probe", count=probes, gap=_GAP, patience=_PATIENCE)
        wait_until(
            lambda: worker.has_done(probes),
            patience=_PATIENCE,
            what=f"{subject.name}: the last probe",
        )
        seconds = worker.ask("latencies")[_WARM_UP:]
    p50, p95, p99 = (percentile(seconds, percent) * 1000 for percent in (50, 95, 99))
    stage.notes["latency_p95"] = p95
    return {"latency_p50": p50, "latency_p99": p99}
