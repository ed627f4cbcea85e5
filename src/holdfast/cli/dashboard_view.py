"""The choices that keys of the dashboard have made, and the acts that they ask for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from enum import StrEnum

from holdfast.cli.show import JobLook
from holdfast.lifecycle import TRANSITIONS, Verb
from holdfast.models import JobId
from holdfast.monitor.snapshot import FailureRow, Snapshot

_HELD = TRANSITIONS[Verb.HOLD].target
_BACKSPACE = ("\x7f", "\x08")
_LONGEST_WORDS = 200
EVERYTHING = "*"


class Asking(StrEnum):
    """The question on the last line. The words are its text."""

    FILTER = "show only entrypoints with"
    OPEN = "open job"
    EXPLAIN = "explain job or entrypoint"
    PAUSE = "pause or resume entrypoint (* for all)"
    REASON = "reason"


@dataclass(frozen=True, slots=True)
class Wish:
    """An act that a person asked for; done between two looks."""

    verb: Asking | Verb
    words: str = ""
    reason: str = ""


@dataclass(slots=True)
class View:
    """The overview, the tracebacks of failures, or one job; and a line being typed."""

    quit_asked: asyncio.Event
    failures: bool = False
    chosen: int = 0
    job: JobLook | None = None
    filter: str = ""
    note: str = ""
    asking: Asking | None = None
    typed: str = ""
    wish: Wish | None = None
    shown: tuple[FailureRow, ...] = ()
    """The failures on the screen, of which one is chosen."""
    pressed: asyncio.Event = field(default_factory=asyncio.Event)
    _paused: str = ""
    """The name to be paused, while its reason is typed."""

    def press(self, key: str) -> None:
        self.note = ""
        if self.asking is not None:
            self._type(key, self.asking)
        else:
            self._choose(key.lower())
        self.pressed.set()

    def _choose(self, key: str) -> None:
        match key:
            case "q" | "":
                self.quit_asked.set()
            case "f":
                # From a job it leads back to where it was opened.
                self.failures = self.failures if self.job else not self.failures
                self.job = None
            case "n" | "j":
                self.chosen += 1
            case "p" | "k" if self.failures and self.job is None:
                self.chosen = max(0, self.chosen - 1)
            case "r":
                self._requeue()
            case "o" | "\r" | "\n" if self.failures and self.job is None and self.shown:
                self.wish = Wish(Asking.OPEN, str(self._row().id))
            case _:
                asked = {"/": "FILTER", "o": "OPEN", "e": "EXPLAIN", "p": "PAUSE"}.get(key)
                self.asking = Asking[asked] if asked else None

    def _row(self) -> FailureRow:
        return self.shown[min(self.chosen, len(self.shown) - 1)]

    def _requeue(self) -> None:
        if self.job is not None:
            found = (self.job.id, self.job.status)
        elif self.failures and self.shown:
            found = (self._row().id, self._row().status)
        else:
            self.note = "choose a held job first: f lists them, o opens one"
            return
        job_id, status = found
        if status is _HELD:
            self.wish = Wish(Verb.REQUEUE, str(job_id))
        else:
            self.note = f"job {job_id} is not held, so there is nothing to requeue"

    def _type(self, key: str, asking: Asking) -> None:
        match key:
            case "":
                self.quit_asked.set()
            case "\x1b":
                self.asking, self.typed = None, ""
            case "\r" | "\n":
                words, self.typed, self.asking = self.typed.strip(), "", None
                self._entered(asking, words)
            case _ if key in _BACKSPACE:
                self.typed = self.typed[:-1]
            case _ if key.isprintable():
                self.typed = (self.typed + key)[:_LONGEST_WORDS]

    def _entered(self, asking: Asking, words: str) -> None:
        if asking is Asking.FILTER:
            self.filter = words
        elif asking is Asking.REASON:
            self.wish = Wish(Asking.PAUSE, self._paused, words) if words else None
            self.note = "" if words else "nothing is paused without a reason"
        elif words:
            self.wish = Wish(asking, words)

    def ask_reason(self, name: str) -> None:
        """Something is to be paused, and a pause takes a reason."""
        self._paused, self.asking = name, Asking.REASON

    def opened(self, found: JobLook) -> None:
        self.job = found

    @property
    def job_id(self) -> JobId | None:
        return self.job.id if self.job else None

    def seen(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot as far as the filter lets it be seen."""
        if self.filter:
            wanted = self.filter.lower()
            snapshot = replace(
                snapshot,
                entrypoints=tuple(e for e in snapshot.entrypoints if wanted in e.name.lower()),
                running=tuple(e for e in snapshot.running if wanted in e.entrypoint.lower()),
                failures=tuple(e for e in snapshot.failures if wanted in e.entrypoint.lower()),
            )
        self.shown = snapshot.failures
        self.chosen = max(0, min(self.chosen, len(self.shown) - 1))
        return snapshot

    @property
    def keys(self) -> str:
        """The effects of the keys now, in less than a line."""
        if self.asking is not None:
            return f"{self.asking}: {self.typed}█   (Enter does it, Esc leaves)"
        if self.job is not None:
            return "q ends · f back · r requeue · o open · e explain · p pause"
        if self.failures:
            return "q ends · f back · n next · p previous · o open · r requeue"
        return "q ends · f tracebacks · / filter · o open · e explain · p pause"

    async def wait(self, seconds: float) -> bool:
        """Wait for a key. Return False when the time is up."""
        try:
            async with asyncio.timeout(seconds):
                await self.pressed.wait()
        except TimeoutError:
            return False
        self.pressed.clear()
        return True
