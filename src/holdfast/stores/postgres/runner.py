"""Runs a statement by its name, and decides when it is sent again."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from holdfast.clock import monotonic
from holdfast.errors import ConnectionLost, DatabaseError, DeadlineExceeded, PrivilegeMissing
from holdfast.stores.postgres.drivers.error_mapping import REPEATABLE, UNTOUCHED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.clock import Clock
    from holdfast.stores.postgres.drivers.base import Driver, Row
    from holdfast.stores.postgres.render import Statement, Statements

MEMORY = "select set_config('work_mem', '256MB', true)"
"""Lets a statement that may not use the disk sort and count in memory."""

_CONFLICT_TRIES = 3
_FIRST_CONFLICT_PAUSE_SECONDS = 0.01

_log = logging.getLogger(__name__)


class Runner:
    """A driver that knows the statements of one set of tables."""

    def __init__(self, driver: Driver, statements: Statements, clock: Clock | None = None) -> None:
        """`clock` gives the time instead of the database."""
        self.driver = driver
        self._statements = statements
        self._clock = clock

    def over(self, driver: Driver) -> Runner:
        return Runner(driver, self._statements, self._clock)

    async def run(
        self, name: str, timeout: float | None = None, /, **values: object
    ) -> Sequence[Row]:
        """Run a statement within `timeout` seconds, by default those of the driver."""
        values["now"] = self._clock and self._clock.now()
        statement = self._statements[name]
        # As `send` does, spelled out: every statement of a worker comes this way.
        args = [values[parameter] for parameter in statement.parameters]
        try:
            return await self.driver.fetch(statement.text, args, timeout=timeout)
        except DatabaseError as error:
            failed = error
        try:
            return await _send_again(self.driver, statement, args, failed, timeout)
        except PrivilegeMissing as error:
            raise PrivilegeMissing(error.denied, statement=name, role=statement.role) from None
        except DatabaseError as error:
            if error.undefined:
                raise _advised(error) from None
            # Repeated in a transaction of a caller's, it would undo what the caller did.
            if not refuses_temporary_files(error) or not self.driver.autocommits:
                raise
        async with self.driver.transaction() as tx:
            await tx.fetch(MEMORY)
            return await tx.fetch(statement.text, args, timeout=timeout)


def _advised(error: DatabaseError) -> DatabaseError:
    return DatabaseError(
        f"{error}; run `holdfast install` where Holdfast is not installed yet, `holdfast upgrade` "
        "where its tables are older, or name their schema with schema=…",
        sqlstate=error.sqlstate,
    )


async def send(driver: Driver, statement: Statement, args: Sequence[object]) -> Sequence[Row]:
    """Send a statement, and send it again where that cannot do anything twice."""
    try:
        return await driver.fetch(statement.text, args)
    except DatabaseError as error:
        failed = error
    return await _send_again(driver, statement, args, failed)


async def _send_again(
    driver: Driver,
    statement: Statement,
    args: Sequence[object],
    failed: DatabaseError,
    timeout: float | None = None,
) -> Sequence[Row]:
    """Send a statement that failed again where that cannot do anything twice, or raise `failed`."""
    deadline = monotonic() + (driver.timeout if timeout is None else timeout)
    conflicts = resent = 0
    while True:
        # Inside a transaction the statements before it are undone as well.
        if driver.in_transaction:
            raise failed
        if failed.sqlstate in REPEATABLE and conflicts < _CONFLICT_TRIES:
            # Jitter keeps two statements that collided from colliding again in step.
            pause = _FIRST_CONFLICT_PAUSE_SECONDS * 2**conflicts
            await driver.pause(pause * random.uniform(0.5, 1.5))  # noqa: S311
            conflicts += 1
        elif not resent and driver.reconnects and _may_resend(statement, failed, deadline):
            level = logging.WARNING if failed.sqlstate in UNTOUCHED else logging.DEBUG
            _log.log(level, "%s: %s; the statement is sent again", driver.place, failed)
            resent = 1
        else:
            raise failed
        try:
            return await driver.fetch(statement.text, args, timeout=timeout)
        except DatabaseError as error:
            failed = error


def _may_resend(statement: Statement, error: DatabaseError, deadline: float) -> bool:
    """Whether a new connection may help, and nothing can have been done by the last try."""
    if error.sqlstate in UNTOUCHED:
        return True
    lost = isinstance(error, ConnectionLost) and not isinstance(error, DeadlineExceeded)
    return lost and statement.reads and monotonic() < deadline


def refuses_temporary_files(error: DatabaseError) -> bool:
    """Whether a statement needed more disk than temp_file_limit allows."""
    return error.sqlstate == "53400"
