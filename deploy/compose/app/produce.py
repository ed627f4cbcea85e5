"""Enqueues a few jobs a second, as a web application would."""

from __future__ import annotations

import asyncio
import os

from holdfast import Holdfast


async def main() -> None:
    async with Holdfast.connect(os.environ["HOLDFAST_DSN"]) as hf:
        while True:
            await hf.queries.enqueue(["resize"] * 10 + ["webhook"], [b"{}"] * 11, [0] * 11)
            await asyncio.sleep(1)


asyncio.run(main())
