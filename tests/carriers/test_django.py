"""Django's connection, in a process of its own: Django is configured once in each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from holdfast.client.queries import SyncQueries

if TYPE_CHECKING:
    from tests.servers import Database

APPLICATION = Path(__file__).parent / "django_shop.py"


@pytest.mark.parametrize("library", ["psycopg", "psycopg2"])
def test_a_job_shares_the_fate_of_an_atomic_block(pg: Database, library: str) -> None:
    with psycopg.connect(pg.dsn, autocommit=True) as connection:
        SyncQueries.from_psycopg_connection(connection).install()
        connection.execute("create table orders (id integer primary key)")
    command = [sys.executable, str(APPLICATION), pg.server_dsn, pg.schema, library]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (ended.stdout, ended.stderr) == ("done\n", "")
