"""What a page gets: the person, the address, and one read-only look at the queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from starlette.datastructures import QueryParams

from holdfast.monitor.reader import Look
from holdfast.web.auth import Identity

if TYPE_CHECKING:
    from holdfast.web.site import Site


MAX_ID = 2**63 - 1
"""Ids are bigint."""


@dataclass(frozen=True, slots=True)
class Nav:
    """The counts beside the names of the pages."""

    now: datetime
    live: int
    held: int
    schedules: int
    workers: int
    breakers: int
    open: int


@dataclass(frozen=True, slots=True)
class Address:
    """A page of the application, wherever that is mounted."""

    base: str
    page: str
    path: str = ""
    """Without the base."""
    query: str = ""
    item: tuple[tuple[str, Any], ...] = ()
    """What the path names, such as the id of a job."""

    @property
    def here(self) -> str:
        return f"{self.base}{self.path}{f'?{self.query}' if self.query else ''}"

    def url(self, path: str = "/", /, **query: object) -> str:
        """The address of another page; parameters that are None or empty are left out.

        What a person typed may be among the names, such as `path` or `self`.
        """
        said = {name: value for name, value in query.items() if value not in (None, "", False)}
        return f"{self.base}{quote(path)}{f'?{urlencode(said, doseq=True)}' if said else ''}"

    def with_query(self, /, **changes: object) -> str:
        """This page with other parameters."""
        params = QueryParams(self.query)
        kept: dict[str, object] = {name: params.getlist(name) for name in params}
        return self.url(self.path, **{**kept, **changes})


@dataclass(frozen=True, slots=True)
class Visit:
    """One look at one page."""

    site: Site
    who: Identity
    address: Address
    look: Look
    nav: Nav
    params: QueryParams = field(default_factory=QueryParams)

    @property
    def now(self) -> datetime:
        return self.nav.now

    @property
    def item(self) -> Mapping[str, Any]:
        return dict(self.address.item)

    def text(self, name: str) -> str | None:
        return text(self.params, name)

    def integer(self, name: str, default: int | None = None) -> int | None:
        value = self.text(name)
        if value is None or not (value.isascii() and value.isdigit()) or len(value) > 18:
            return default
        return int(value)


def text(params: Mapping[str, str], name: str) -> str | None:
    """A parameter of an address; None where it is absent or empty."""
    value = params.get(name, "").strip()
    # PostgreSQL has no text with a NUL in it.
    return value.replace("\0", "")[:400] or None


Load = Callable[[Visit], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its address, its template, and what it reads."""

    name: str
    path: str
    template: str
    load: Load
    group: int = 0
    """Its place in the navigation; 0 keeps it out."""
    examined: bool = False
    """Whether it shows what the doctor found."""
