"""The driver of an embedded server before it is started: every call is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import InvalidInput
from holdfast.stores.postgres.drivers.base import BaseDriver, Loan, OnNotify

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path


class UnstartedDriver(BaseDriver):
    """Keeps calls that come too early from reaching a server that happens to run here."""

    def __init__(self, directory: Path, *, timeout: float) -> None:
        super().__init__(timeout=timeout)
        self._directory = directory

    def _lend(self, seconds: float) -> AbstractAsyncContextManager[Loan]:
        raise self._refusal()

    async def listen(
        self,
        channel: str,
        on_notify: OnNotify,
        on_ready: Callable[[], None],
        *,
        own: str | None = None,
    ) -> None:
        raise self._refusal()

    def _refusal(self) -> InvalidInput:
        return InvalidInput(
            f"the embedded database {self._directory} is not started; use it inside "
            f"`async with Holdfast.connect(dsn) as hf:`"
        )
