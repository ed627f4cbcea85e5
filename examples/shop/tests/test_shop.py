"""The shop's own tests, with the fixtures of Holdfast."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Request
from shop.app import create_app
from shop.database import Order, sessions
from shop.tasks import notify_partner, ship
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.testing import QueueUnderTest


@asynccontextmanager
async def opened(queue: QueueUnderTest) -> AsyncIterator[tuple[httpx.AsyncClient, list[str]]]:
    """A customer's client, and the keys under which the partner was called."""
    dsn = queue.dsn.replace("postgresql:", "postgresql+asyncpg:", 1)
    settings = {"server_settings": {"search_path": queue.names.schema or "public"}}
    engine = create_async_engine(dsn, connect_args=settings)
    app = create_app(queue, engine, partner="http://partner", works=False)
    called: list[str] = []
    partner = FastAPI()

    @partner.post("/shipped")
    async def shipped(request: Request) -> None:
        called.append(request.headers["Idempotency-Key"])
        if len(called) == 1:
            raise HTTPException(503)

    async with app.router.lifespan_context(app):
        await queue.resources["http"].aclose()
        to_partner = httpx.ASGITransport(partner)
        transport = httpx.ASGITransport(app)
        async with (
            httpx.AsyncClient(transport=to_partner, base_url="http://partner") as http,
            httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
        ):
            queue.resources["http"] = http
            yield client, called


async def test_an_order_is_placed_shipped_and_announced(holdfast_pg: QueueUnderTest) -> None:
    async with opened(holdfast_pg) as (client, called):
        placed = await client.post("/orders", json={"item": "book"})
        assert placed.status_code == 201
        order = placed.json()["id"]
        await holdfast_pg.assert_enqueued(ship, order_id=order)
        before = (await client.get(f"/orders/{order}")).json()
        assert (before["state"], before["job"]) == ("placed", "queued")

        await holdfast_pg.drain()
        after = (await client.get(f"/orders/{order}")).json()
        assert (after["state"], after["job"]) == ("shipped", "successful")
        assert after["shipment"] == {"order_id": order, "tracking": f"HF{order:06}"}

        # The partner was down. It is called again later, under the same key.
        await holdfast_pg.assert_enqueued(notify_partner, order_id=order)
        holdfast_pg.travel(timedelta(hours=1))
        await holdfast_pg.drain()
        await holdfast_pg.refute_enqueued(notify_partner)
        assert len(called) == 2
        assert len(set(called)) == 1

        # The result is kept for a day, the order for longer.
        holdfast_pg.travel(timedelta(days=2))
        later = await client.get(f"/orders/{order}")
        assert (later.status_code, later.json()["shipment"]) == (200, None)
        assert later.json()["state"] == "shipped"


async def test_an_order_that_fails_leaves_no_job(holdfast_pg: QueueUnderTest) -> None:
    async with opened(holdfast_pg) as (client, _):
        with pytest.raises(DBAPIError):
            await client.post("/orders", json={"item": "bad\0"})
        await holdfast_pg.refute_enqueued(ship)
        assert (await client.get("/orders/1")).status_code == 404


async def test_old_orders_are_forgotten_at_night(holdfast_pg: QueueUnderTest) -> None:
    async with opened(holdfast_pg) as (client, _):
        order = (await client.post("/orders", json={"item": "book"})).json()["id"]
        async with sessions.begin() as session:
            row = await session.get_one(Order, order)
            row.state, row.placed_at = "shipped", row.placed_at - timedelta(days=31)
        await holdfast_pg.drain()
        assert (await client.get(f"/orders/{order}")).status_code == 200
        holdfast_pg.travel(timedelta(days=1))
        await holdfast_pg.drain()
        assert (await client.get(f"/orders/{order}")).status_code == 404
