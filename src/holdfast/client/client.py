"""The access of tasks and handles to a queue."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.client.queries import now_or_never
from holdfast.client.waiting import Waiting
from holdfast.errors import DatabaseError, InvalidInput, PrivilegeMissing, TracebackRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from holdfast.client.queries import Queries
    from holdfast.lifecycle import Status
    from holdfast.models import JobId, StoredResult
    from holdfast.ports import Store

T = TypeVar("T")

_CLOSING_SECONDS = 1.0
"""A connection that does not close within this time is left to the end of the process."""


class Client:
    """One queue, as its producers see it."""

    def __init__(self, queries: Queries) -> None:
        self.queries = queries
        self._waiting: Waiting | None = None
        self._sync: SyncPortal | None = None
        self._sync_lock = threading.Lock()
        self._pid = os.getpid()

    async def ended(self, job_id: JobId) -> Status | None:
        """Wait for the end of a job, or until it is held. None when its id is unknown."""
        return await self._waits().ended(job_id)

    async def result_of(self, job_id: JobId) -> StoredResult | None:
        """The stored result of a job. None where it has expired or was never stored."""
        return await self._waits().results.get(job_id)

    def _waits(self) -> Waiting:
        waiting, store = self._waiting, self.queries.store
        # Waits of an event loop that has ended went with it.
        if (
            waiting is None
            or waiting.loop is not asyncio.get_running_loop()
            or not waiting.uses(store)
        ):
            waiting = self._waiting = Waiting(store)
        return waiting

    async def record_of(self, job_id: JobId) -> TracebackRecord | None:
        """The last error of a job. None where there is none, or this user may not read it."""
        try:
            history = await self.queries.store.jobs.history(job_id)
        except PrivilegeMissing:
            return None
        for entry in reversed(history):
            if entry.traceback is not None:
                return _record(entry.traceback)
        return None

    async def close(self) -> None:
        """Stop waiting for jobs."""
        sync, self._sync = self._sync, None
        if sync is not None:
            await asyncio.to_thread(sync.close)
        waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting.loop is asyncio.get_running_loop():
            await waiting.close()

    def on(self, transaction: object, *, autocommit: bool = False) -> Queries:
        """The queries in the caller's transaction."""
        return self.queries.joining(transaction, autocommit=autocommit)

    def run_sync(
        self, work: Callable[[Queries], Coroutine[Any, Any, T]], queries: Queries | None = None
    ) -> T:
        """Run `work` to its end in a thread that has no event loop."""
        if queries is not None:
            # Refused before anything is begun: SQLAlchemy's session would be left half connected.
            if queries.store.needs_loop:
                raise InvalidInput(
                    "this transaction needs an event loop; await enqueue() instead, or pass a "
                    "synchronous session or connection to .on()"
                )
            return now_or_never(work(queries))
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise InvalidInput(
                "an event loop runs in this thread, and it would be blocked; "
                "await enqueue() instead"
            )
        store = self.queries.store
        if not store.dedicated:
            return now_or_never(work(self.queries))
        if self._pid != os.getpid():
            # The threads of the parent process are not here, nor is whoever held the lock.
            self._sync, self._sync_lock, self._pid = None, threading.Lock(), os.getpid()
        with self._sync_lock:
            if self._sync is None or self._sync.store is not store:
                self._sync = SyncPortal(store, self.queries)
            portal = self._sync
        return portal.run(work)


class SyncPortal:
    """A thread with an event loop and a connection of its own, for calls from plain threads."""

    def __init__(self, store: Store, queries: Queries) -> None:
        self.store = store
        self._queries = queries.over(store.fork("sync"))
        self._loop = asyncio.new_event_loop()
        # A daemon: it must not keep a program from ending.
        self._thread = threading.Thread(target=self._serve, name="holdfast-sync", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def run(self, work: Callable[[Queries], Coroutine[Any, Any, T]]) -> T:
        """Run `work` there, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work(self._queries), self._loop).result()

    def close(self) -> None:
        """Close the connection and end the thread."""

        async def close() -> None:
            with suppress(DatabaseError):
                await self._queries.store.close()
            # The transport says goodbye in the next turn of the loop.
            await asyncio.sleep(0)
            self._loop.call_soon(self._loop.stop)

        asyncio.run_coroutine_threadsafe(close(), self._loop)
        self._thread.join(_CLOSING_SECONDS)


def _record(stored: Mapping[str, Any]) -> TracebackRecord:
    """A record as the log has it; one of another version may lack a part."""
    return TracebackRecord(
        exception_type=str(stored.get("exception_type", "")),
        exception_message=str(stored.get("exception_message", "")),
        traceback=str(stored.get("traceback", "")),
        additional_context=stored.get("additional_context"),
        job_id=stored.get("job_id"),
        timestamp=stored.get("timestamp"),
    )
