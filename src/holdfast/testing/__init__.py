"""For an application's tests: a queue with a clock to move, and questions to ask it.

The pytest plugin gives it as the fixtures `holdfast` (in memory) and `holdfast_pg`.
"""

from __future__ import annotations

from holdfast.testing.jobs import make_job
from holdfast.testing.making import embedded_dsn, in_memory, on_postgres
from holdfast.testing.queue import Performed, QueueUnderTest

__all__ = ["Performed", "QueueUnderTest", "embedded_dsn", "in_memory", "make_job", "on_postgres"]
