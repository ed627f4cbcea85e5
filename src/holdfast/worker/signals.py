"""SIGTERM and SIGINT as a worker understands them: the first is graceful, the second is fast."""

from __future__ import annotations

import asyncio
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _SignalHandlers:
    """Handlers of one event loop, which may have several workers but one handler of a signal."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._stops: list[Callable[[], None]] = []
        self._before: dict[int, Any] = {}

    def add(self, stop: Callable[[], None]) -> None:
        if not self._stops:
            self._open()
        self._stops.append(stop)

    def remove(self, stop: Callable[[], None]) -> None:
        self._stops.remove(stop)
        if not self._stops:
            self._close()

    def _open(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                before = signal.getsignal(number)
                self._loop.add_signal_handler(number, self._receive)
            except (NotImplementedError, ValueError, RuntimeError):
                continue
            self._before[number] = before

    def _close(self) -> None:
        for number, before in self._before.items():
            self._loop.remove_signal_handler(number)
            signal.signal(number, before)
        self._before.clear()

    def _receive(self) -> None:
        for stop in list(self._stops):
            stop()


_handlers: WeakKeyDictionary[asyncio.AbstractEventLoop, _SignalHandlers] = WeakKeyDictionary()


@contextmanager
def stop_on_signals(shutdown: asyncio.Event, fast_stop: asyncio.Event) -> Iterator[None]:
    """Set the events on SIGTERM and SIGINT. Only the main thread can receive signals."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if shutdown.is_set():
            fast_stop.set()
        shutdown.set()

    handlers = _handlers.get(loop) or _handlers.setdefault(loop, _SignalHandlers(loop))
    handlers.add(stop)
    try:
        yield
    finally:
        handlers.remove(stop)
