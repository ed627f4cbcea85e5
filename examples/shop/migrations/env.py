"""Alembic's side: the application gives the connection."""

from __future__ import annotations

from alembic import context
from shop.database import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
with context.begin_transaction():
    context.run_migrations()
