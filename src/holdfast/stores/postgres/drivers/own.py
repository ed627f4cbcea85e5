"""A driver with a connection of its own, opened and opened again as it is needed."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from typing import TYPE_CHECKING, Self

from holdfast.clock import monotonic
from holdfast.errors import ConnectionFailed, ConnectionLost, DatabaseError
from holdfast.stores.postgres.drivers.base import (
    TIMEOUT,
    LendingDriver,
    Loan,
    attend,
    is_pooled,
    positive,
)
from holdfast.stores.postgres.drivers.dsn import parse
from holdfast.stores.postgres.drivers.failures import UNPREPARED, UNTOUCHED, unreachable
from holdfast.stores.postgres.drivers.overseer import Overseer
from holdfast.stores.postgres.drivers.pooling import DEAF_SECONDS, TELL, Pooling, hears
from holdfast.stores.postgres.drivers.turns import AsyncTurns, stuck

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.stores.postgres.drivers.base import OnNotify, Row, Session

CONNECT_TIMEOUT = 5.0
_LEAST_CONNECT = 2.0
_LEAST_TIME = 0.05

_NOT_COMPILED = "select set_config('jit', 'off', false)"
"""Among dead rows the planner expects much work of statements that do little, and has them
compiled each time, which takes up to a second. Behind a pooler others would inherit this."""

_log = logging.getLogger(__name__)


class DsnDriver(LendingDriver):
    """One session of our own: opened on first use, and again by the call after it was lost."""

    dedicated = True
    autocommits = True

    def __init__(
        self,
        dsn: str,
        *,
        role: str = "main",
        timeout: float = TIMEOUT,
        connect_timeout: float = CONNECT_TIMEOUT,
        statement_cache_size: int = 100,
    ) -> None:
        super().__init__(timeout=timeout)
        self._target = parse(dsn)
        self._role = role
        self._connect_timeout = positive("connect_timeout", connect_timeout)
        self._statement_cache_size = statement_cache_size
        self._pooling = Pooling(seen=self._target.pooled)
        self._overseer = Overseer(lambda: self.fork("overseer"))
        self._turns = AsyncTurns()
        self._session: Session | None = None
        self._closed = False

    @abstractmethod
    async def _open(self, seconds: float, cache_size: int) -> Session:
        """Connect, with so many seconds for each host."""
        ...

    def fork(self, role: str) -> Self:
        sibling = type(self)(
            self._target.dsn,
            role=role,
            timeout=self._timeout,
            connect_timeout=self._connect_timeout,
            statement_cache_size=self._statement_cache_size,
        )
        sibling._pooling = self._pooling
        return sibling

    @property
    def place(self) -> str:
        return str(self._target)

    @property
    def _application_name(self) -> str:
        return f"holdfast:{self._role}"

    async def fetch(
        self, sql: str, args: Sequence[object] = (), *, timeout: float | None = None
    ) -> Sequence[Row]:
        try:
            return await super().fetch(sql, args, timeout=timeout)
        except DatabaseError as error:
            if error.sqlstate not in UNTOUCHED:
                raise
            _log.warning("%s: %s; connecting again", self._target, error)
        return await super().fetch(sql, args, timeout=timeout)

    def _lend(self, seconds: float) -> _Lending:
        return _Lending(self, seconds)

    async def _borrow(self, seconds: float) -> Loan:
        deadline = await self._turns.take(seconds)
        try:
            # Those that have waited for a silent server do not wait for it again one by one.
            until = deadline + max(0.0, self._connect_timeout - seconds)
            session = await self._current(until, seconds)
        except BaseException as error:
            self._turns.leave(error)
            raise
        # A server that was slow to let us in is no reason to hurry it now.
        return Loan(session, max(deadline, monotonic() + seconds / 3))

    def _give_back(self, session: Session, error: BaseException | None) -> None:
        if isinstance(error, DatabaseError):
            if error.sqlstate in UNPREPARED:
                self._pooling.notice(self._target)
                session.drop()
            elif isinstance(error, (ConnectionFailed, ConnectionLost)):
                session.drop()
        self._turns.leave(error)

    async def _current(self, until: float, seconds: float) -> Session:
        if self._closed:
            raise ConnectionFailed(f"the driver {self._application_name!r} is closed; make another")
        if self._session is None or self._session.closed:
            if until - monotonic() < _LEAST_TIME:
                raise stuck(seconds)
            self._session = await self._connect(until)
            if self._closed:
                await self._session.close()
        return self._session

    async def _connect(self, until: float) -> Session:
        hosts, longest = len(self._target.hosts), self._connect_timeout
        patience = max(longest / hosts, min(longest, _LEAST_CONNECT))
        patience = min(patience, (until - monotonic()) / hosts)
        cache_size = 0 if self._pooling.seen else self._statement_cache_size
        session = await self._open(patience, cache_size)
        if not cache_size:
            return session
        try:
            loan = Loan(session, max(until, monotonic() + 1))
            if not await is_pooled(loan):
                await session.fetch(_NOT_COMPILED, (), loan.left)
                return session
            self._pooling.notice(self._target)
            await session.close()
        except DatabaseError as error:
            session.drop()
            raise unreachable(self._target, error, error.sqlstate) from None
        except BaseException:
            session.drop()
            raise
        return await self._open(patience, 0)

    async def listen(self, channel: str, on_notify: OnNotify, on_ready: Callable[[], None]) -> None:
        session = await self._for_listening()
        while self._pooling.seen and not await hears(
            session, self._turns, self._tell, self._timeout
        ):
            self._pooling.deaf(self._target)
            await session.close()
            await asyncio.sleep(DEAF_SECONDS)
            session = await self._for_listening()
        await attend(session, self._turns, channel, on_notify, on_ready, lasts=False)

    async def _for_listening(self) -> Session:
        async with self._lend(self._timeout) as loan:
            # Whoever asked for no prepared statements was not asked why.
            if not self._pooling.seen and await is_pooled(loan):
                self._pooling.notice(self._target)
            return loan.session

    async def _tell(self, channel: str, word: str) -> None:
        sibling = self.fork("probe")
        try:
            await sibling.fetch(TELL, (channel, word))
        finally:
            await sibling.close()

    async def close(self) -> None:
        # Out of turn: a statement that hangs must not keep the process from ending.
        self._closed = True
        if self._session is not None:
            await self._session.close()


class _Lending:
    """A class and not a generator, as a turn is: every statement passes through it."""

    __slots__ = ("_driver", "_loan", "_seconds")

    def __init__(self, driver: DsnDriver, seconds: float) -> None:
        self._driver = driver
        self._seconds = seconds

    async def __aenter__(self) -> Loan:
        self._loan = await self._driver._borrow(self._seconds)
        return self._loan

    async def __aexit__(
        self, _kind: object, error: BaseException | None, _traceback: object
    ) -> None:
        self._driver._give_back(self._loan.session, error)
