"""The shop's tables, and the sessions that reach them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alembic import command
from alembic.config import Config
from sqlalchemy import BigInteger, DateTime
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

if TYPE_CHECKING:
    from sqlalchemy import Connection

MIGRATIONS = Path(__file__).parents[1] / "migrations"


class Base(DeclarativeBase):
    """The metadata that Alembic compares."""


class Order(Base):
    """What a customer has bought."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    state: Mapped[str] = mapped_column(default="placed")
    tracking: Mapped[str | None]
    job_id: Mapped[int | None] = mapped_column(BigInteger)
    """Of the job that ships it."""
    placed_at: Mapped[datetime] = mapped_column(
        DateTime(timezone=True), default=lambda: datetime.now(UTC)
    )


sessions: async_sessionmaker[AsyncSession] = async_sessionmaker(expire_on_commit=False)
"""Bound to an engine when the application starts."""


async def migrate(engine: AsyncEngine) -> None:
    """Bring the shop's tables up to date."""

    def upgrade(connection: Connection) -> None:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        attributes: dict[str, Any] = config.attributes
        attributes["connection"] = connection
        command.upgrade(config, "head")

    async with engine.begin() as connection:
        await connection.run_sync(upgrade)
