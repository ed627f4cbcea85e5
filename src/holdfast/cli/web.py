"""`holdfast web`: the page of a queue, for this machine unless more is asked for."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

from holdfast.app import Holdfast
from holdfast.cli.command import App, example, say
from holdfast.cli.connect import Options, open_holdfast, options_of, run_async
from holdfast.cli.output import line
from holdfast.cli.target import AppReference, opened
from holdfast.errors import InvalidInput, MissingDependency

PORT = 8642
TOKEN, VIEWER_TOKEN = "HOLDFAST_WEB_TOKEN", "HOLDFAST_WEB_VIEWER_TOKEN"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_STOP_SECONDS = 2
"""Streams do not end by themselves, so a stop does not wait for them."""


@dataclass(frozen=True, slots=True)
class Serving:
    """The address at which the page is served, and the tokens that open it."""

    host: str
    port: int
    token: str
    viewer: str | None
    given: bool
    """Whether a person chose the token. Otherwise it was made up."""
    hosts: tuple[str, ...] | None
    name: str = ""
    environment: str = ""

    @property
    def address(self) -> str:
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{shown}:{self.port}/"


def register(app: App) -> None:
    app.command(
        name="web",
        rich_help_panel="Look",
        epilog=example(
            "holdfast web",
            "holdfast web myapp:hf --port 9000 --environment staging",
            "HOLDFAST_WEB_TOKEN=… holdfast web --host 0.0.0.0 --allow-host queue.example.com",
        ),
    )(web)


def web(
    ctx: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(help="module:attribute of a Holdfast, so that its table queues are shown."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = PORT,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A name that browsers may use for this server. May be repeated."),
    ] = None,
    name: Annotated[str, typer.Option(help="What the page calls this queue.")] = "",
    environment: Annotated[
        str, typer.Option(help="Shown beside the name: production, staging, …")
    ] = "",
) -> None:
    """Serve a web page of the queue: see it, and steer it.

    It listens on this machine only. Whoever opens it needs the token of HOLDFAST_WEB_TOKEN, or the
    one that is printed. With HOLDFAST_WEB_VIEWER_TOKEN people see everything and change nothing.
    """
    options = options_of(ctx)
    serving = prepare(host, port, allow_host, name or _name(options), environment)
    run_async(lambda: _serve(options, target, serving))


def prepare(
    host: str,
    port: int,
    allow_host: list[str] | None,
    name: str,
    environment: str,
    variables: Mapping[str, str] = os.environ,
) -> Serving:
    """Refuse an address beyond this machine unless a person chose a token."""
    token = variables.get(TOKEN, "")
    local = is_loopback(host)
    if not local and not token:
        raise InvalidInput(
            f"--host {host} can be reached from other machines, so the page needs a token of your "
            f"own; set {TOKEN} (16 characters or more), or leave out --host"
        )
    hosts = tuple(allow_host or ())
    return Serving(
        host,
        port,
        token or secrets.token_urlsafe(24),
        variables.get(VIEWER_TOKEN) or None,
        bool(token),
        (*_LOOPBACK, *hosts) if local or hosts else None,
        name,
        environment,
    )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _name(options: Options) -> str:
    """The database, without its password."""
    return options.describe().rpartition("/")[2] if options.dsn else ""


async def _serve(options: Options, target: str | None, serving: Serving) -> None:
    async with _queue(options, target) as hf, served(hf, serving) as address:
        say_where(serving, address)
        await _until_stopped()


@asynccontextmanager
async def _queue(options: Options, target: str | None) -> AsyncIterator[Holdfast]:
    if target is None:
        async with open_holdfast(options) as hf:
            yield hf
        return
    async with opened(AppReference.parse(target)) as hf:
        await hf.verify()
        yield hf


def say_where(serving: Serving, address: str) -> None:
    if serving.given:
        line(f"The page is at {address} (sign in with the token of {TOKEN}).")
    else:
        line(f"The page is at {address}?token={serving.token}")
    say("Ctrl-C stops it")


async def _until_stopped() -> None:
    import asyncio
    import signal

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    await stopped.wait()


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise InvalidInput(
            f"{host} port {port} cannot be listened on "
            f"({error.strerror or error}); choose another with --port"
        ) from None


@asynccontextmanager
async def served(hf: Holdfast, serving: Serving) -> AsyncIterator[str]:
    """Serve the page while the block runs. Yield its address."""
    import asyncio

    try:
        import uvicorn
    except ModuleNotFoundError:
        raise MissingDependency(
            "`holdfast web` needs uvicorn, which is not installed; run: pip install 'holdfast[web]'"
        ) from None
    from holdfast.web import Tokens, app

    site = app(
        hf,
        auth=Tokens(serving.token, serving.viewer),
        name=serving.name,
        environment=serving.environment,
        hosts=serving.hosts,
    )
    config = uvicorn.Config(
        site,
        # Requests are not logged: the first one may carry the token.
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=_STOP_SECONDS,
        server_header=False,
        proxy_headers=False,
    )
    with _listener(serving.host, serving.port) as listener:
        port = listener.getsockname()[1]
        server = uvicorn.Server(config)
        # Signals belong to the command that serves.
        task = asyncio.get_running_loop().create_task(server._serve([listener]))
        try:
            shown = f"[{serving.host}]" if ":" in serving.host else serving.host
            yield f"http://{shown}:{port}/"
        finally:
            await site.live.close()
            server.should_exit = True
            await task
