"""Mounted under a path of FastAPI, Starlette and Django, with the login of what is around it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast import Holdfast
from holdfast.web import app
from tests.web import story
from tests.web.conftest import SAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from tests.web.conftest import Told


def signed_in(request: Request) -> tuple[str, str] | None:
    user = request.headers.get("x-user")
    return (user, "operator") if user else None


def in_fastapi(web: ASGIApp) -> ASGIApp:
    api = FastAPI()
    api.mount("/ops/queue", web)
    return api


def in_starlette(web: ASGIApp) -> ASGIApp:
    return Starlette(routes=[Mount("/ops", routes=[Mount("/queue", web)])])


def in_django(web: ASGIApp) -> ASGIApp:
    import django
    from django.conf import settings
    from django.core.asgi import get_asgi_application

    if not settings.configured:
        settings.configure(ROOT_URLCONF=(), ALLOWED_HOSTS=["*"])
        django.setup()
    around: Any = get_asgi_application()
    return Starlette(routes=[Mount("/ops/queue", web), Mount("/", around)])


@pytest.mark.parametrize("mounted", [in_fastapi, in_starlette, in_django])
async def test_the_page_works_under_a_path(
    told: Told, mounted: Callable[[ASGIApp], ASGIApp]
) -> None:
    base = "/ops/queue"
    story.beat(told.database)
    async with Holdfast.connect(told.database.dsn) as hf:
        web = app(hf, auth=signed_in)
        transport = httpx.ASGITransport(app=mounted(web))
        user = {"x-user": "mara"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://shop.test", headers=user
        ) as client:
            seen, ahead = set[str](), {f"{base}/"}
            while ahead and len(seen) < 40:
                path = ahead.pop()
                seen.add(path)
                answer = await client.get(path)
                assert answer.status_code == 200, path
                links = set(re.findall(r'(?:href|src|action)="([^"#]+)', answer.text))
                assert all(link.startswith(f"{base}/") for link in links), (path, links)
                plain = {link.replace("&amp;", "&") for link in links if "/act/" not in link}
                # One page of each kind, or the walk would never end.
                ahead |= {link for link in plain if "?" not in link and "/jobs/" not in link}
                ahead -= seen | {f"{base}/find", f"{base}/logout"}
            assert {f"{base}/{name}" for name in ("jobs", "log", "static/holdfast.css")} <= seen
            job = hf.queries
            [job_id] = await job.enqueue("mounted", b"{}")
            form = {"csrf": client.cookies["holdfast_csrf"], "id": job_id, "back": "/jobs"}
            answer = await client.post(f"{base}/act/cancel", data=form, headers=SAME)
            assert (answer.status_code, answer.headers["location"]) == (303, f"{base}/jobs")
            [entry] = await job.job_history(job_id)
            assert entry.actor == "web:mara"
            client.headers.pop("x-user")
            assert (await client.get(f"{base}/jobs")).status_code == 403
        await web.aclose()
