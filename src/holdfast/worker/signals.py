"""SIGTERM and SIGINT as a worker understands them: the first is graceful, the second is fast."""

from __future__ import annotations

import asyncio
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def heeding(shutdown: asyncio.Event, hurry: asyncio.Event) -> Iterator[None]:
    """Set the events on signals, where signals can be had: in the main thread."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if shutdown.is_set():
            hurry.set()
        shutdown.set()

    taken = []
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            before = signal.getsignal(number)
            loop.add_signal_handler(number, stop)
            taken.append((number, before))
        except (NotImplementedError, ValueError, RuntimeError):
            continue
    try:
        yield
    finally:
        for number, before in taken:
            loop.remove_signal_handler(number)
            signal.signal(number, before)
