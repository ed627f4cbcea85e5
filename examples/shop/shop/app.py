"""The web application. It also works: in production start `holdfast run` beside it instead."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import httpx
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from holdfast import Holdfast, ResultMissing, Status
from shop.database import Order, migrate, sessions
from shop.tasks import Shipment, forget_old_orders, ship, tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sqlalchemy.ext.asyncio import AsyncEngine


class NewOrder(BaseModel):
    """What a customer sends."""

    item: str


class Placed(BaseModel):
    """Where to look for it."""

    id: int


class OrderStatus(BaseModel):
    """What a customer sees."""

    state: str
    job: Status | None
    progress: float | None
    message: str | None
    shipment: Shipment | None


def create_app(hf: Holdfast, engine: AsyncEngine, *, partner: str, works: bool = True) -> FastAPI:
    """The shop on a queue and a database. `partner` is the address of the webhook."""
    sessions.configure(bind=engine)
    hf.include(tasks)
    hf.schedule("forget-old-orders", "0 3 * * *")(forget_old_orders)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with hf, httpx.AsyncClient(base_url=partner) as hf.resources["http"]:
            await hf.install()
            await migrate(engine)
            worker = asyncio.create_task(hf.run(signals=False)) if works else None
            try:
                yield
            finally:
                hf.shutdown.set()
                if worker is not None:
                    await worker
        await engine.dispose()

    app = FastAPI(title="Shop", lifespan=lifespan)

    @app.post("/orders", status_code=201)
    async def place(new: NewOrder) -> Placed:
        # The order and its job are one commit: neither is ever there without the other.
        async with sessions.begin() as session:
            order = Order(item=new.item)
            session.add(order)
            await session.flush()
            handle = await ship.on(session).enqueue(order.id)
            order.job_id = handle.id
        return Placed(id=order.id)

    @app.get("/orders/{order_id}")
    async def look(order_id: int) -> OrderStatus:
        async with sessions() as session:
            order = await session.get(Order, order_id)
        if order is None or order.job_id is None:
            raise HTTPException(404, "there is no such order")
        handle = hf.handle(order.job_id, ship)
        status, progress = await handle.status(), await handle.progress()
        shipment = None
        if status is Status.SUCCESSFUL:
            # A result is kept for a day; what lasts is in the order.
            with suppress(ResultMissing):
                shipment = await handle.result()
        return OrderStatus(
            state=order.state,
            job=status,
            progress=progress.fraction if progress else None,
            message=progress.message if progress else None,
            shipment=shipment,
        )

    return app
