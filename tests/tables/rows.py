"""Models and plain handlers at the top level, where annotations and other processes find them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from pydantic import BaseModel, Field

if TYPE_CHECKING:
    from datetime import datetime


@dataclass
class Snooze:
    """Some columns of the article's table."""

    id: int
    user_email: str
    subject: str | None
    remind_at: datetime
    seen: list[str] = field(init=False, default_factory=list)


@dataclass
class Demanding:
    id: int
    no_such_column: str


@dataclass
class Picky:
    id: int
    subject: str

    def __post_init__(self) -> None:
        if not self.subject:
            raise ValueError("a reminder needs a subject")


class Address(BaseModel):
    """A model by which a row may fail."""

    id: int
    user_email: str = Field(pattern=r"[^@]+@[^@]+")


class Body(BaseModel):
    to: str


class Outgoing(BaseModel):
    item: Any
    body: Body


class Named(TypedDict):
    id: int
    user_email: str


def fail_with_process(row: dict[str, Any]) -> None:
    raise ValueError(f"row {row['id']} ran in {os.getpid()}")


def fail_with_model(row: Snooze) -> None:
    raise ValueError(f"{type(row).__name__} {row.id}")
