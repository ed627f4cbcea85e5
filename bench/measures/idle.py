"""What a worker without work costs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.contestants import Contestant
    from bench.stage import Stage

SETTLING = 3.0


def idle(stage: Stage, subject: Contestant) -> dict[str, float]:
    """Statements as the server logs them, CPU and memory as the system counts them."""
    with stage.database(subject) as database:
        stage.server.log_statements(database)
        with stage.start(subject, database) as worker:
            # No samples: telling the harness that nothing happened would be work.
            worker.ask("work", sample=0)
            time.sleep(SETTLING)
            statements, cpu = stage.server.statements_logged(), worker.cpu_seconds()
            began = time.monotonic()
            time.sleep(stage.sizes_of(subject).idle_seconds)
            seconds = time.monotonic() - began
            worker.check()
            return {
                "idle_statements": (stage.server.statements_logged() - statements) / seconds,
                "idle_cpu": (worker.cpu_seconds() - cpu) / seconds * 100,
                "idle_rss": worker.megabytes(),
            }
