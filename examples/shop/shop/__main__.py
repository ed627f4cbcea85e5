"""`python -m shop`: the shop on an embedded PostgreSQL, with a partner that fails now and then."""

from __future__ import annotations

import random
from pathlib import Path

import uvicorn
from fastapi import HTTPException
from sqlalchemy.ext.asyncio import create_async_engine

from holdfast import Holdfast, embedded
from shop.app import create_app

ADDRESS = ("127.0.0.1", 8000)


def main() -> None:
    server = embedded.start(Path(".shop"))
    engine = create_async_engine(server.dsn.replace("postgresql:", "postgresql+asyncpg:", 1))
    partner = f"http://{ADDRESS[0]}:{ADDRESS[1]}/partner"
    app = create_app(Holdfast.connect(server.dsn), engine, partner=partner)

    @app.post("/partner/shipped")
    async def shipped() -> None:
        if random.random() < 0.5:  # noqa: S311 - a partner, not a secret
            raise HTTPException(503, "try again")

    try:
        uvicorn.run(app, host=ADDRESS[0], port=ADDRESS[1])
    finally:
        server.stop()


if __name__ == "__main__":
    main()
