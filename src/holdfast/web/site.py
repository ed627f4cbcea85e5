"""The parts of one web application: configuration, reader, templates, sign-in and live stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from starlette.datastructures import QueryParams
from starlette.requests import Request

from holdfast.app import Holdfast
from holdfast.monitor.reader import Look, PageReader
from holdfast.web.auth import SESSION_COOKIE, HostAuth, Identity, Login, host_identity
from holdfast.web.checkup import Checkup
from holdfast.web.errands import Errands
from holdfast.web.inspected import Inspected
from holdfast.web.redaction import Redaction
from holdfast.web.visit import Address, Nav, Page, Visit
from holdfast.web.words import FILTERS

LIVE = "live_"
"""Blocks of a template whose names begin so are replaced while the page is open."""


def templates() -> Environment:
    """The templates, which escape whatever they are given."""
    made = Environment(
        loader=PackageLoader("holdfast.web"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(FILTERS)
    # Blocks that are rendered alone do not see what their template imports.
    macros: Any = made.get_template("macros.html").module
    shared = {name: getattr(macros, name) for name in ("i", "st", "empty", "row_button")}
    made.globals.update(shared)
    return made


class Site:
    """One application. Its pages share a reader, and its live stream has another."""

    def __init__(
        self,
        hf: Holdfast,
        pages: Sequence[Page],
        *,
        name: str = "",
        environment: str = "",
        login: Login | None = None,
        auth: HostAuth | None = None,
        hosts: frozenset[str] | None = None,
        redaction: Redaction | None = None,
    ) -> None:
        self.hf = hf
        self.pages = pages
        self.name = name
        self.environment = environment
        self.login = login
        self.auth = auth
        self.hosts = hosts
        self.redaction = redaction or Redaction()
        self.templates = templates()
        self.reader = PageReader(hf)
        self.live_reader = PageReader(hf, "web_live")
        self.checkup = Checkup(self.reader)
        self.inspected = Inspected()
        self.errands = Errands(hf)

    async def identify(self, connection: Request) -> Identity | None:
        if self.login is not None:
            return self.login.identity(connection.cookies.get(SESSION_COOKIE))
        return None if self.auth is None else await host_identity(self.auth, connection)

    @asynccontextmanager
    async def visit(self, who: Identity, address: Address) -> AsyncIterator[Visit]:
        async with self.reader.open() as look:
            yield self.visit_on(look, await self.nav(look), who, address)

    def visit_on(self, look: Look, nav: Nav, who: Identity, address: Address) -> Visit:
        return Visit(self, who, address, look, nav, QueryParams(address.query))

    async def nav(self, look: Look) -> Nav:
        return Nav(*await look.one("page_nav", table=self.reader.table))

    def frame(self, address: Address, who: Identity | None) -> dict[str, Any]:
        """What every template needs, whether or not the database answers."""
        groups: dict[int, list[Page]] = {}
        for page in self.pages:
            if page.group:
                groups.setdefault(page.group, []).append(page)
        return {
            "site": self,
            "who": who,
            "address": address,
            "url": address.url,
            "page": address.page,
            "groups": list(groups.values()),
        }

    def context(self, visit: Visit, found: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **self.frame(visit.address, visit.who),
            "visit": visit,
            "nav": visit.nav,
            "now": visit.now,
            **found,
        }

    def parts(self, page: Page, context: Mapping[str, Any]) -> dict[str, str]:
        """The live blocks and cells of a page, by the id of the element they are in."""
        template = self.templates.get_template(page.template)
        # The root fills in the blocks of the templates that this one extends.
        blocks = dict(self.templates.get_template("base.html").blocks) | dict(template.blocks)
        return {
            name.replace("_", "-"): "".join(render(template.new_context(dict(context))))
            for name, render in blocks.items()
            if name.startswith(LIVE)
        } | dict(context.get("live_cells", {}))

    async def close(self) -> None:
        self.errands.close()
        self.checkup.close()
        await self.reader.close()
        await self.live_reader.close()
