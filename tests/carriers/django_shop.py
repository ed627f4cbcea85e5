"""A Django application: argv is the DSN, the schema and the library below Django."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest


class Undone(Exception):
    """Ends a transaction without a commit."""


def main(dsn: str, schema: str, library: str) -> None:
    import django
    from django.conf import settings
    from django.db import connection, transaction

    from holdfast import CarrierError, DuplicateJobError, Holdfast, NoTransaction

    parts = urlsplit(dsn)
    place = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "HOST": parts.hostname,
        "PORT": parts.port,
        "USER": parts.username,
        "PASSWORD": parts.password,
        "OPTIONS": {"options": f"-csearch_path={schema}"},
    }
    lite = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    settings.configure(DATABASES={"default": place, "lite": lite})
    django.setup()

    hf = Holdfast.connect(f"{dsn}?options=-csearch_path%3D{schema}")

    def orders() -> list[int]:
        with connection.cursor() as cursor:
            cursor.execute("select id from orders order by 1")
            return [row[0] for row in cursor.fetchall()]

    def add(number: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute("insert into orders values (%s)", [number])

    def jobs() -> list[Any]:
        found = hf.queries.on(connection, autocommit=True).browse_queue()
        return [job.payload for job in reversed(found)]

    with pytest.raises(NoTransaction, match=r"transaction\.atomic"):
        hf.queries.on(connection).enqueue("ship")
    assert type(connection.connection).__module__.partition(".")[0] == library

    with transaction.atomic():
        [job_id] = hf.queries.on(connection).enqueue("ship", b"1", dedupe_key="k")
        add(1)
    assert (jobs(), orders()) == ([b"1"], [1])

    with suppress(Undone), transaction.atomic():
        hf.queries.on(connection).enqueue("ship", b"undone before anything else")
        raise Undone
    assert (jobs(), orders()) == ([b"1"], [1])

    with transaction.atomic():
        queries = hf.queries.on(connection)
        with suppress(Undone), transaction.atomic():
            queries.enqueue("ship", b"undone")
            add(2)
            raise Undone
        with pytest.raises(DuplicateJobError):
            queries.enqueue("ship", b"2", dedupe_key="k")
        with pytest.raises(DuplicateJobError):
            queries.enqueue(["ship"] * 2, [b"3", b"4"], dedupe_key=[None, "k"])
        queries.enqueue("ship", b"kept")
        assert queries.mark_job_as_cancelled([job_id]) == {job_id}
        add(3)
    assert (jobs(), orders()) == ([b"kept"], [1, 3])

    with suppress(Undone), transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(CarrierError, match="leave the block first"):
            hf.queries.on(connection).enqueue("ship")
        raise Undone

    from django.db import connections

    with pytest.raises(CarrierError, match="sqlite"):
        hf.queries.on(connections["lite"]).enqueue("ship")
    assert jobs() == [b"kept"]
    print("done")


if __name__ == "__main__":
    if sys.argv[3] == "psycopg2":
        # Django takes psycopg 3 wherever it is installed.
        sys.modules["psycopg"] = None  # type: ignore[assignment]
    main(*sys.argv[1:])
