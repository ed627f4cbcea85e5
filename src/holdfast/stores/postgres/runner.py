"""Runs a statement by its name, with the store's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import PrivilegeMissing
from holdfast.stores.postgres.grants import purpose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.clock import Clock
    from holdfast.stores.postgres.drivers.base import Driver, Row
    from holdfast.stores.postgres.render import Statements


class Runner:
    """A driver that knows the statements of one set of tables."""

    def __init__(self, driver: Driver, statements: Statements, clock: Clock) -> None:
        self.driver = driver
        self._statements = statements
        self._clock = clock

    def over(self, driver: Driver) -> Runner:
        return Runner(driver, self._statements, self._clock)

    async def run(self, name: str, /, **values: object) -> Sequence[Row]:
        return await self.run_within(None, name, **values)

    async def run_within(
        self, seconds: float | None, name: str, /, **values: object
    ) -> Sequence[Row]:
        """As `run`, with another time limit than the driver's own."""
        statement = self._statements[name]
        values["now"] = self._clock.now()
        try:
            return await self.driver.fetch(statement.text, statement.args(values), timeout=seconds)
        except PrivilegeMissing as error:
            raise PrivilegeMissing(error.denied, statement=name, role=purpose(name)) from None
