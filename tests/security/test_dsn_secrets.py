"""No part of a password in a DSN reaches a message, a log or a traceback."""

from __future__ import annotations

import itertools
import logging
import socket
import traceback
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import HoldfastError
from tests.drivers.every_driver import DSN_KINDS, dsn_driver, value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import Database

FIRST, SECOND, THIRD = "Kestrel77", "Marmot88", "Osprey99"
MARKS = [*"@:/?#%&=+,;[]\"'\\~ü|", "%40", "%2F", "%zz", "@@", ":@", "@:", "@/", "?@"]
URLS = (
    "postgresql://me:{secret}@{place}/app",
    "postgres://me:{secret}@{place}/app?sslmode=disable",
    "postgresql://me:{secret}@{place},{place}/app",
    "postgresql://m@e:{secret}@{place}/app",
    "postgresql://me:{secret}@/app?host={place}",
    "postgresql://me@{place}/app?password={secret}",
    "postgresql:///app?user=me&password={secret}&host=127.0.0.1&port={port}",
    "postgresql://me:{secret}@{place}/app?connect_timeout=2&application_name={secret}",
    "postgresql://me:{secret}@{place}/app?nonsense={secret}",
    "me:{secret}@{place}/app",
    "host=127.0.0.1 port={port} user=me password={secret} dbname=app",
    "host=127.0.0.1 port={port} user=me password='{secret}' dbname=app",
    "host=127.0.0.1 port={port} user=me dbname=app password={secret}",
    "host=127.0.0.1 port={port} user=me dbname=app sslpassword={secret} password={secret}",
)


def secrets() -> Iterator[str]:
    yield FIRST
    for mark in MARKS:
        yield f"{FIRST}{mark}{SECOND}"
        yield f"{mark}{FIRST}"
        yield f"{FIRST}{mark}"
    for one, two in itertools.product("@:/%[", repeat=2):
        yield f"{FIRST}{one}{SECOND}{two}{THIRD}"


@pytest.mark.parametrize("kind", DSN_KINDS)
@pytest.mark.parametrize("shape", URLS)
async def test_a_dsn_that_fails_shows_no_part_of_its_password(
    kind: str, shape: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        for secret in secrets():
            dsn = shape.format(secret=secret, place=f"127.0.0.1:{port}", port=port)
            with pytest.raises(HoldfastError) as caught:
                await dsn_driver(kind, dsn, connect_timeout=2.0).fetch("select 1")
            seen = "".join(traceback.format_exception(caught.value))
            seen += repr(caught.value) + caplog.text + "".join(capfd.readouterr())
            for part in (FIRST, SECOND, THIRD):
                assert part not in seen, dsn


@pytest.mark.parametrize("kind", DSN_KINDS)
async def test_an_unescaped_at_belongs_to_the_password(kind: str, pg18: Database) -> None:
    """Both libraries find the host that was meant, as they do when it is escaped."""
    for secret in ("a@b", "a@b@c", "@", "a%40b@c"):
        dsn = pg18.dsn.replace("postgresql://postgres@", f"postgresql://postgres:{secret}@")
        driver = dsn_driver(kind, dsn)
        assert await value(driver, "select 1") == 1
        await driver.close()
