"""What the shop does later: ship an order, notify a partner, clean up at night."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import httpx
from pydantic import BaseModel
from sqlalchemy import delete

from holdfast import Context, Schedule, TaskGroup
from shop.database import Order, sessions

tasks = TaskGroup()
KEPT = timedelta(days=30)


class Shipment(BaseModel):
    """What becomes of an order."""

    order_id: int
    tracking: str


@tasks.task(store_result=True)
async def ship(ctx: Context, order_id: int) -> Shipment:
    """Ship an order. Its new state, the next job and the end of this one are one commit."""
    async with ctx.transaction(sessions) as session:
        order = await session.get_one(Order, order_id)
        await ctx.progress(0.5, "packed")
        order.state, order.tracking = "shipped", f"HF{order_id:06}"
        await notify_partner.on(session).enqueue(order_id)
        return Shipment(order_id=order_id, tracking=order.tracking)


@tasks.task(retry=8)
async def notify_partner(ctx: Context, order_id: int) -> None:
    """Call a webhook; whatever goes wrong, it is tried again, later and later."""
    async with sessions() as session:
        order = await session.get_one(Order, order_id)
    client: httpx.AsyncClient = ctx.resources["http"]
    # The partner sees the same key with every try, and counts the order once.
    answer = await client.post(
        "/shipped",
        json={"order": order.id, "tracking": order.tracking},
        headers={"Idempotency-Key": str(ctx.job.id)},
    )
    answer.raise_for_status()


async def forget_old_orders(schedule: Schedule) -> None:
    """Runs every night."""
    async with sessions.begin() as session:
        old = Order.placed_at < datetime.now(UTC) - KEPT
        await session.execute(delete(Order).where(old, Order.state == "shipped"))
