"""What listens, and to whom."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

import psutil

from holdfast import Holdfast
from tests.cli.running import get, installed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import Database


def _listening(pid: int) -> list[str]:
    process = psutil.Process(pid)
    return [
        connection.laddr.ip
        for each in (process, *process.children(recursive=True))
        for connection in each.net_connections()
        if connection.status == psutil.CONN_LISTEN
    ]


def _postmaster(directory: Path) -> int:
    [file] = directory.rglob("postmaster.pid")
    return int(file.read_text().split()[0])


def test_nothing_listens_unless_asked_and_then_on_loopback(tmp_path: Path, pg18: Database) -> None:
    for bench in installed(tmp_path, pg18.dsn):
        quiet = bench.start("jobs:main")
        bench.noted("made")
        assert _listening(quiet.process.pid) == []

        asked = bench.start("jobs:main", "--health-port", "0")
        url = asked.health()
        found = _listening(asked.process.pid)
        assert found
        assert all(ipaddress.ip_address(address).is_loopback for address in found)
        for path in ("/", "/debug", "/jobs", "/metrics/../jobs", "/%2e%2e/etc/passwd"):
            assert get(url + path)[0] == 404
        assert get(f"{url}/livez", host="evil.example")[0] == 421
        assert get(f"{url}/livez", method="POST")[0] == 405


async def test_the_embedded_server_listens_on_no_network(server_directory: Path) -> None:
    async with Holdfast.connect(f"embedded:{server_directory}") as hf:
        await hf.install()
        assert _listening(_postmaster(server_directory)) == []
