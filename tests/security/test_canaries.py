"""Secrets are planted wherever a user may have one, and looked for wherever they could come out."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psutil
import psycopg
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast import Holdfast, InvalidInput, Job, NewJob, RetryRequested
from holdfast.cli.connect import Given, resolve
from holdfast.cli.logs import JsonFormatter, TextFormatter
from holdfast.settings import Names
from holdfast.stores.postgres.binding import Binding
from holdfast.stores.postgres.drivers import dsn as dsns
from holdfast.telemetry.otel import OpenTelemetry
from holdfast.telemetry.prometheus import Metrics, render
from tests.cli.command_line import holdfast, inside
from tests.cli.running import installed
from tests.worker.workers import ends

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import Database

PASSWORD, PAYLOAD, HEADER, ERROR, LOCAL = (
    f"canary-{what}-5e1f" for what in ("password", "payload", "header", "error", "local")
)
CREDENTIAL = f"GET https://ann:{ERROR}@api.local/x?token={ERROR}: 401\nAuthorization: {ERROR}"


def _with_password(database: Database) -> str:
    return database.dsn.replace("postgres@", f"postgres:{PASSWORD}@", 1)


def _spill(job: Job) -> None:
    """At the top level, so that another process finds it."""
    secret = LOCAL[::1]
    raise ValueError(f"{CREDENTIAL} {len(secret)}")


def _register(hf: Holdfast) -> None:
    @hf.entrypoint("gone")
    async def gone(job: Job) -> None:
        _spill(job)

    @hf.entrypoint("held", on_failure="hold")
    async def held(job: Job) -> None:
        _spill(job)

    @hf.entrypoint("again", max_attempts=2)
    async def again(job: Job) -> None:
        try:
            _spill(job)
        except ValueError as error:
            raise RetryRequested(timedelta(0), CREDENTIAL) from error

    hf.entrypoint("thread", executor="thread", on_failure="hold")(_spill)
    hf.entrypoint("process", executor="process", on_failure="hold")(_spill)


NAMES = ("gone", "held", "again", "thread", "process")


def _rows(database: Database) -> str:
    """All that is in the tables, but for what a job is made of."""
    tables = Binding(Names()).relations
    texts = []
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        for key, table in tables.items():
            if key not in ("prefix", "status"):
                found = connection.execute(
                    f"select to_jsonb(t) - 'payload' - 'headers' from {table} t".encode()
                )
                texts += [json.dumps(row) for (row,) in found]
    return "\n".join(texts)


async def test_no_secret_leaves_a_worker(pg18: Database, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    reader, spans = InMemoryMetricReader(), InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    metrics = Metrics(NAMES, lambda: 0)
    async with Holdfast.connect(_with_password(pg18)) as hf:
        await hf.install()
        _register(hf)
        hf.instrument(OpenTelemetry(MeterProvider(metric_readers=[reader]), tracers))
        hf.observe(metrics)
        jobs = [NewJob(name, PAYLOAD.encode(), headers={"tenant": HEADER}) for name in NAMES]
        await hf.queries.enqueue_many(jobs)
        for _ in range(3):
            await ends(hf.run(mode="drain"))
        texts = {
            "objects": f"{hf!r} {vars(hf)!r} {hf.store!r} {vars(hf.store)!r} {hf.queries!r}",
            "tables": _rows(pg18),
            "logs": "\n".join(
                formatter.format(record)
                for record in caplog.records
                if record.name.startswith("holdfast")
                for formatter in (TextFormatter(), JsonFormatter())
            ),
            "metrics": render(metrics.samples()),
            "telemetry": repr(reader.get_metrics_data())
            + "".join(span.to_json() for span in spans.get_finished_spans()),
        }
    assert "ValueError" in texts["tables"]
    assert "401" in texts["tables"]
    assert all(name in texts["metrics"] and name in texts["telemetry"] for name in NAMES)
    for sink, text in texts.items():
        for secret in (PASSWORD, PAYLOAD, HEADER, ERROR, LOCAL):
            assert secret not in text, (sink, secret)


def test_the_command_shows_payloads_where_asked_and_credentials_nowhere(pg18: Database) -> None:
    dsn = _with_password(pg18)

    async def live() -> None:
        async with Holdfast.connect(dsn) as hf:
            await hf.install()
            _register(hf)
            await hf.queries.enqueue("held", PAYLOAD.encode())
            await ends(hf.run(mode="drain"))

    asyncio.run(live())
    shown = holdfast("show", "1", dsn=dsn)
    assert PAYLOAD in shown.out
    done = [shown]
    for command in ("verify", "install", "failed", "log", "stats", "workers", "--help"):
        done.append(holdfast(command, dsn=dsn))
    done += [holdfast("dashboard", "--once", dsn=dsn), holdfast("--debug", "show", "9", dsn=dsn)]
    for each in done:
        for secret in (PASSWORD, ERROR, LOCAL):
            assert secret not in each.out + each.err, each
    for each in done[1:]:
        assert PAYLOAD not in each.out + each.err, each


def test_a_password_on_the_command_line_is_warned_of_once_and_not_repeated(pg18: Database) -> None:
    inside("install", "--dsn", pg18.dsn)
    done = inside("table", "--dsn", _with_password(pg18), "check", "nothing")
    assert done.err.count("list processes") == 1
    assert PASSWORD not in done.out + done.err
    assert "list processes" not in inside("failed", "--dsn", pg18.dsn).err
    assert "list processes" not in holdfast("failed", dsn=_with_password(pg18)).err


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://a:b@h/x", True),
        ("postgresql://a:b%40c@h/x", True),
        ("postgresql://h/x?user=a&password=b", True),
        ("host=h password=b", True),
        ("password = 'b' host=h", True),
        ("postgresql://a@h:5432/x", False),
        ("postgresql:///x?host=/run/pg", False),
        ("host=h user=password", False),
        ("embedded:dir", False),
    ],
)
def test_a_password_is_recognised_in_every_form_of_a_dsn(dsn: str, shown: bool) -> None:
    assert dsns.shows_password(dsn) is shown


def test_no_value_shows_its_password() -> None:
    dsn = f"postgresql://ann:{PASSWORD}@host/app"
    given = Given(dsn=dsn)
    for value in (given, resolve(given), dsns.parse(dsn)):
        assert PASSWORD not in repr(value)
        assert PASSWORD not in str(value)


def test_no_process_has_the_password_in_its_arguments(tmp_path: Path, pg18: Database) -> None:
    for bench in installed(tmp_path, _with_password(pg18)):
        running = bench.start("jobs:main", "--processes", "2")
        bench.noted("made", 2)
        process = psutil.Process(running.process.pid)
        everyone = [process, *process.children(recursive=True)]
        assert len(everyone) >= 3
        for each in everyone:
            assert PASSWORD not in " ".join(each.cmdline())
        assert PASSWORD not in running.log


@pytest.mark.parametrize(
    "wrong",
    [
        {"payload": PAYLOAD},
        {"payload": [PAYLOAD]},
        {"headers": PAYLOAD},
        {"headers": {"a": {PAYLOAD}}},
        {"headers": {"a": PAYLOAD, "b": "\0"}},
        {"headers": {"a": PAYLOAD, 1: 2}},
    ],
)
async def test_what_cannot_be_enqueued_is_not_quoted(wrong: dict[str, Any]) -> None:
    hf = Holdfast.in_memory()
    with pytest.raises(InvalidInput) as caught:
        await hf.queries.enqueue("mail", **wrong)
    assert PAYLOAD not in str(caught.value)
