"""Tasks above the classes that they need, as a module with postponed annotations may have them."""

from __future__ import annotations

from pydantic import BaseModel

from holdfast import TaskGroup

tasks = TaskGroup()


class Tree(BaseModel):
    """Its field names a class that comes later."""

    leaf: Leaf


@tasks.task(name="grow", store_result=True)
async def grow(tree: Tree) -> Tree:
    return tree


class Leaf(BaseModel):
    """Named by a field."""

    number: int
