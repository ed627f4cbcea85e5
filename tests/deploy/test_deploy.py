"""What people deploy with is checked as far as it can be without a cluster or images."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
import pytest
import yaml

from devtools.cluster import free_port
from holdfast import Holdfast
from holdfast.telemetry.prometheus import FAMILIES
from tests.cli.command_line import inside
from tests.faults.pgbouncer import keeps_prepared_statements, started

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import Database

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "compose/Dockerfile"
PROMETHEUS = DEPLOY / "prometheus"
BOARD = DEPLOY / "compose/grafana/dashboards/holdfast.json"

_METRIC = re.compile(r"\bholdfast_\w+")
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_VALUES = {"HOLDFAST_TARGET": "shop.worker:hf", "HOLDFAST_KEEP": "30d"}
_PATIENCE_SECONDS = 60


def program(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: apt-get install {package})")
    return found


def succeed(*command: str, cwd: Path = DEPLOY, **options: Any) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def exported() -> set[str]:
    """Every name under which a worker exports a series."""
    names = {family.name for family in FAMILIES}
    histograms = [family.name for family in FAMILIES if family.kind == "histogram"]
    return names | {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize(
    "path", [PROMETHEUS / "alerts.yml", PROMETHEUS / "alerts_test.yml", BOARD], ids=lambda p: p.name
)
def test_every_metric_that_is_read_is_exported(path: Path) -> None:
    read = set(_METRIC.findall(path.read_text()))

    assert read
    assert read <= exported()


def test_the_alert_rules_fire_when_they_should() -> None:
    promtool = program("promtool", "prometheus")

    succeed(promtool, "check", "rules", str(PROMETHEUS / "alerts.yml"))
    succeed(promtool, "check", "config", str(PROMETHEUS / "prometheus.yml"))
    succeed(promtool, "test", "rules", "alerts_test.yml", cwd=PROMETHEUS)


def test_prometheus_can_read_every_expression_of_the_board(tmp_path: Path) -> None:
    promtool = program("promtool", "prometheus")
    panels = json.loads(BOARD.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    filled = [each.replace("$__rate_interval", "5m") for each in expressions]
    rules = [{"record": f"board:{n}", "expr": each} for n, each in enumerate(filled)]
    file = tmp_path / "board.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))

    succeed(promtool, "check", "rules", str(file))


def test_the_manifests_fit_the_schemas_of_kubernetes() -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    found = documents(DEPLOY / "kubernetes/worker.yaml")

    for document in found:
        validate(document, "1.31", strict=True)

    assert {"Job", "Deployment", "PodDisruptionBudget"} <= {each["kind"] for each in found}


def test_kubernetes_waits_longer_than_jobs_may_take_to_end() -> None:
    [deployment] = [
        each
        for each in documents(DEPLOY / "kubernetes/worker.yaml")
        if each["kind"] == "Deployment"
    ]
    pod = deployment["spec"]["template"]["spec"]
    [command] = [container["command"] for container in pod["containers"]]
    [drain] = [int(word[16:-1]) for word in command if word.startswith("--drain-timeout=")]

    assert pod["terminationGracePeriodSeconds"] >= drain + 5


def test_the_scaling_query_is_the_age_of_the_first_due_job(pg: Database) -> None:
    [scaled] = [
        each
        for each in documents(DEPLOY / "kubernetes/keda.yaml")
        if each["kind"] == "ScaledObject"
    ]
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    succeed(sys.executable, "-m", "holdfast", "install", "--dsn", pg.dsn)

    with psycopg.connect(pg.dsn, autocommit=True) as connection:
        assert connection.execute(query).fetchone() == (0,)
        connection.execute(
            "insert into holdfast (entrypoint, execute_after) values"
            " ('mail', now() - interval '90 seconds'), ('mail', now() + interval '1 hour')"
        )
        [(age,)] = connection.execute(query).fetchall()
        paused = "insert into holdfast_pauses (name, until, reason) values (%s, %s, 'a test')"
        connection.execute(paused, ("mail", "2000-01-01"))
        [(late,)] = connection.execute(query).fetchall()
        connection.execute("update holdfast_pauses set until = null")
        [(none,)] = connection.execute(query).fetchall()

    assert late >= age >= 90
    assert none == 0


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    analyze = program("systemd-analyze", "systemd")
    units = sorted((DEPLOY / "systemd").glob("*@.*"))
    # An instance whose program exists, since the check asks for that too.
    for unit in units:
        text = unit.read_text().replace("/srv/%i/.venv/bin/holdfast", sys.executable)
        (tmp_path / unit.name.replace("@", "@shop")).write_text(text)
    said = succeed(analyze, "verify", *map(str, sorted(tmp_path.iterdir())))

    assert len(units) == 3
    assert not [line for line in said.splitlines() if str(tmp_path) in line]


def test_systemd_units_get_every_variable_that_they_use() -> None:
    unit = (DEPLOY / "systemd/holdfast-worker@.service").read_text()
    example = (DEPLOY / "systemd/shop.env.example").read_text()

    assert set(_VARIABLE.findall(unit)) <= set(re.findall(r"^(\w+)=", example, re.MULTILINE))


def commands() -> Iterator[list[str]]:
    """Every `holdfast` command of these files, with values where a file has variables."""
    for unit in sorted((DEPLOY / "systemd").glob("*.service")):
        [line] = re.findall(r"^ExecStart=\S+/holdfast (.*)$", unit.read_text(), re.MULTILINE)
        yield _VARIABLE.sub(lambda found: _VALUES.get(found[1], "1"), line).split()
    for document in documents(DEPLOY / "kubernetes/worker.yaml"):
        pod = document.get("spec", {}).get("template", {}).get("spec", {})
        for container in pod.get("containers", ()):
            yield container["command"][1:]
    [compose] = documents(DEPLOY / "compose/compose.yaml")
    for service in compose["services"].values():
        if service.get("command", [""])[0] == "holdfast":
            yield service["command"][1:]
    [line] = re.findall(r"^CMD (\[.*)$", DOCKERFILE.read_text(), re.MULTILINE)
    yield json.loads(line)[1:]


@pytest.mark.parametrize("command", list(commands()), ids=lambda words: " ".join(words)[:40])
def test_holdfast_understands_every_command(command: list[str]) -> None:
    """The parser refuses an option that it does not know before it shows the help."""
    done = inside(*command, "--help")

    assert done.code == 0, done.err


def test_compose_fits_its_specification() -> None:
    schema = ("--builtin-schema", "vendor.compose-spec")

    succeed(sys.executable, "-m", "check_jsonschema", *schema, "compose/compose.yaml")


def test_the_image_is_built_from_files_that_are_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = re.findall(r"^COPY (.+) \S+$", DOCKERFILE.read_text(), re.MULTILINE)
    copied = {path for line in lines for path in line.split()}
    [extras] = re.findall(r"^RUN pip install .*'\.\[(.+)\]'$", DOCKERFILE.read_text(), re.MULTILINE)

    assert all((ROOT / path).exists() for path in copied)
    assert {project["readme"], *project["license-files"], "pyproject.toml", "src"} <= copied
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


def test_grafana_finds_the_board_and_its_source() -> None:
    provisioning = BOARD.parents[1] / "provisioning"
    [source] = documents(provisioning / "datasources/prometheus.yaml")
    [boards] = documents(provisioning / "dashboards/holdfast.yaml")
    [compose] = documents(DEPLOY / "compose/compose.yaml")
    mounts = [volume.split(":") for volume in compose["services"]["grafana"]["volumes"]]
    board = json.loads(BOARD.read_text())
    [variable] = [each for each in board["templating"]["list"] if each["type"] == "datasource"]

    assert {"/etc/grafana/provisioning", boards["providers"][0]["options"]["path"]} == {
        target for _, target, _ in mounts
    }
    assert source["datasources"][0]["type"] == variable["query"] == "prometheus"
    assert {panel["datasource"]["uid"] for panel in board["panels"]} == {f"${{{variable['name']}}}"}


async def test_producers_enqueue_through_the_pooler_of_compose(
    pg18: Database, server_directory: Path
) -> None:
    port = free_port()
    dsn = f"postgresql://holdfast:holdfast@127.0.0.1:{port}/holdfast"
    async with Holdfast.connect(pg18.dsn) as direct:
        await direct.install()
        with started(server_directory, pooler_settings(pg18, server_directory, port), port):
            async with Holdfast.connect(dsn) as hf:
                ids = await hf.queries.enqueue(["resize"] * 3)
        assert [job for job, _ in await direct.queries.job_status(ids)] == ids


def pooler_settings(database: Database, directory: Path, port: int) -> str:
    """Those of compose, for the server of the test."""
    server = urlsplit(database.server_dsn)
    shutil.copy(DEPLOY / "compose/pgbouncer/userlist.txt", directory / "userlist.txt")
    changes = {
        "host=postgres port=5432 dbname=holdfast": f"host={server.hostname} port={server.port}"
        f" dbname={server.path[1:]} user=postgres"
        f" connect_query='set search_path to {database.schema}'",
        "listen_addr = 0.0.0.0": "listen_addr = 127.0.0.1\nunix_socket_dir =",
        "listen_port = 6432": f"listen_port = {port}",
        "/etc/pgbouncer": str(directory),
    }
    text = (DEPLOY / "compose/pgbouncer/pgbouncer.ini").read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    if not keeps_prepared_statements():
        text = re.sub(r"^max_prepared_statements.*$", "", text, flags=re.MULTILINE)
    return text


def test_kubernetes_scales_the_deployment_that_is_there() -> None:
    secret, _, deployment, _ = documents(DEPLOY / "kubernetes/worker.yaml")
    login, scaled = documents(DEPLOY / "kubernetes/keda.yaml")
    [trigger] = scaled["spec"]["triggers"]

    assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert trigger["authenticationRef"]["name"] == login["metadata"]["name"]
    for reference in login["spec"]["secretTargetRef"]:
        assert reference["name"] == secret["metadata"]["name"]
        assert reference["key"] in secret["stringData"]


def test_every_file_that_compose_mounts_exists() -> None:
    [compose] = documents(DEPLOY / "compose/compose.yaml")
    services = compose["services"]
    mounted = [
        volume.split(":")[0]
        for service in services.values()
        for volume in service.get("volumes", ())
        if volume.startswith(".")
    ]

    assert mounted
    assert all((DEPLOY / "compose" / path).exists() for path in mounted)
    workers = [name for name in services if name.startswith("worker-")]
    [targets] = [
        each["targets"]
        for job in documents(PROMETHEUS / "prometheus.yml")[0]["scrape_configs"]
        for each in job["static_configs"]
    ]
    assert [f"{name}:8080" for name in workers] == targets


def test_the_compose_application_produces_and_works(pg: Database) -> None:
    app = DEPLOY / "compose/app"
    environment = {"HOLDFAST_DSN": pg.dsn, "PATH": "/usr/bin:/bin"}
    succeed(sys.executable, "-m", "holdfast", "install", env=environment)
    producer = subprocess.Popen([sys.executable, "-m", "produce"], cwd=app, env=environment)
    try:
        with psycopg.connect(pg.dsn, autocommit=True) as connection:
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while not connection.execute("select from holdfast").fetchall():
                assert producer.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        producer.kill()
        producer.wait()

    run = [sys.executable, "-m", "holdfast", "run", "app:hf", "--mode", "drain"]
    succeed(*run, cwd=app, env=environment)

    with psycopg.connect(pg.dsn) as connection:
        done = connection.execute(
            "select count(*) from holdfast_log"
            " where status = 'successful' and entrypoint = 'resize'"
        ).fetchone()
    assert done is not None
    assert done[0] >= 10
