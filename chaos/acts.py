"""What only the full profile plays: failovers, a pooler, wrong clocks, a full disk, old snapshots.

Each act is a short run of its own. One that this machine cannot play says so loudly.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import asyncpg

from chaos import counting, shim, snoozes, tail, upgrading
from chaos.checker.model import Violation
from chaos.cluster import Cluster, tied
from chaos.files import SECOND, now
from chaos.run import Act, Profile, draw, perform
from chaos.stage import Stage
from devtools.cluster import HOST, free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from rich.console import Console

    from chaos.checker.check import Verdict

    Say = Callable[[str], None]
    Play = Callable[[Path, int, Say], Awaitable[Verdict]]

_PROFILE = Profile("act", 11.0, 1_500, 15, 3, crash_every=0.0, poison=1)
_MIDDLE = 4.0
_DISK = "32m"
_WAVES = 4
_COUNTS = 20_000


class CannotPlay(Exception):
    """This machine lacks what the act needs."""


async def _standby(primary: Cluster, directory: Path) -> Cluster:
    standby = await primary.make_standby(directory)
    await standby.start()
    return standby


async def _demand_synchrony(primary: Cluster) -> None:
    """From now on a commit waits for the standby."""
    connection = await primary.connect()
    await connection.execute("alter system set synchronous_standby_names = '*'")
    await connection.execute("select pg_reload_conf()")
    state = "select count(*) from pg_stat_replication where sync_state = 'sync'"
    while not await connection.fetchval(state):  # noqa: ASYNC110 - another server decides
        await asyncio.sleep(0.05)
    await connection.close()


def _redirect(stage: Stage, standby: Cluster) -> None:
    stage.cluster = standby
    stage.proxy.upstream = standby.port


async def failover_sync(directory: Path, seed: int, say: Say) -> Verdict:
    """The primary dies, and its synchronous standby takes over. Nothing acknowledged is lost."""
    async with Cluster(directory / "primary") as primary:
        standby = await _standby(primary, directory / "standby")
        try:
            await _demand_synchrony(primary)

            async def during(stage: Stage) -> None:
                await asyncio.sleep(_MIDDLE)
                began = now()
                await primary.crash()
                await standby.promote()
                _redirect(stage, standby)
                stage.fault("failover", t=began, seconds=(now() - began) / SECOND)

            stage = Stage(primary, directory, lease=_PROFILE.lease)
            act = Act(during)
            return await perform(stage, _PROFILE, seed, draw(_PROFILE, seed), say=say, act=act)
        finally:
            await standby.crash()


async def failover_async(directory: Path, seed: int, say: Say) -> Verdict:
    """The primary dies, and a standby that lags takes over. What it had not received is lost."""
    async with Cluster(directory / "primary") as primary:
        standby = await _standby(primary, directory / "standby")
        known: set[int] = set()
        switched = 0
        try:

            async def during(stage: Stage) -> None:
                nonlocal known, switched
                await asyncio.sleep(_MIDDLE)
                began = now()
                await standby.stop()
                await asyncio.sleep(1.0)
                await primary.crash()
                await standby.start()
                await standby.promote()
                known = await tail.known_jobs(await standby.connect(stage.database))
                switched = now()
                _redirect(stage, standby)
                stage.fault("failover", t=began, seconds=(now() - began) / SECOND)

            stage = Stage(primary, directory, lease=_PROFILE.lease)
            quiet = replace(_PROFILE, faults=0)
            verdict = await perform(stage, quiet, seed, [], say=say, act=Act(during))
            await primary.start()
            knew = await tail.known_jobs(await primary.connect(stage.database))
        finally:
            await standby.crash()
    failover = tail.Failover(knew, known, switched)
    tail.judge(verdict, failover, directory)
    say(
        f"the standby had not received {len(failover.tail)} jobs; "
        f"{verdict.figures['lost_with_the_tail']} of them were acknowledged, and are gone"
    )
    return verdict


async def outages(directory: Path, seed: int, say: Say) -> Verdict:
    """Twice the server is away for longer than a lease, while every worker runs jobs."""
    async with Cluster(directory / "pg") as cluster:

        async def during(stage: Stage) -> None:
            for _ in range(2):
                await asyncio.sleep(_MIDDLE)
                began = now()
                await cluster.crash()
                await asyncio.sleep(2 * _PROFILE.lease)
                await cluster.start()
                stage.fault("crash", t=began, seconds=(now() - began) / SECOND)

        stage = Stage(cluster, directory, lease=_PROFILE.lease)
        quiet = replace(_PROFILE, faults=0)
        return await perform(stage, quiet, seed, [], say=say, act=Act(during))


async def skewed_clocks(directory: Path, seed: int, say: Say) -> Verdict:
    """The wall clocks of workers are an hour ahead and ninety seconds behind."""
    if not shim.build(directory):
        raise CannotPlay("there is no C compiler to build the clock's shim with")
    async with Cluster(directory / "pg") as cluster:
        stage = Stage(cluster, directory, lease=_PROFILE.lease)
        act = Act(workers={"skews": (3600.0, -90.0, 0.0)})
        return await perform(stage, _PROFILE, seed, draw(_PROFILE, seed), say=say, act=act)


async def old_snapshot(directory: Path, seed: int, say: Say) -> Verdict:
    """A transaction stays open for the whole run, so no dead tuple can be removed."""
    async with Cluster(directory / "pg") as cluster:

        async def during(stage: Stage) -> None:
            connection = await stage.connect()
            try:
                async with connection.transaction(isolation="repeatable_read"):
                    await connection.fetchval("select count(*) from holdfast")
                    await asyncio.sleep(_PROFILE.seconds)
            finally:
                connection.terminate()

        stage = Stage(cluster, directory, lease=_PROFILE.lease)
        act = Act(during)
        return await perform(stage, _PROFILE, seed, draw(_PROFILE, seed), say=say, act=act)


@asynccontextmanager
async def _small_disk(cluster: Cluster, directory: Path) -> AsyncIterator[Path]:
    if os.geteuid() != 0:
        raise CannotPlay("only root can mount a small disk")
    disk = directory / "disk"
    disk.mkdir()
    if trouble := _run("mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(disk)):
        raise CannotPlay(f"no small disk can be mounted: {trouble}")
    try:
        place = disk / "space"
        place.mkdir()
        if cluster.account is not None:
            os.chown(place, *cluster.account)
        yield place
    finally:
        _run("umount", "-l", str(disk))


def _run(*command: str) -> str:
    """What the command complained about, if it failed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip() or "it failed" if done.returncode else ""


async def full_disk(directory: Path, seed: int, say: Say) -> Verdict:
    """The disk under the tables is full for a while."""
    async with Cluster(directory / "pg") as cluster, _small_disk(cluster, directory) as place:

        async def during(stage: Stage) -> None:
            await asyncio.sleep(_MIDDLE)
            began = now()
            connection = await stage.connect()
            try:
                await connection.execute("create table filler (text text)")
                # Ever smaller pieces, until not one more fits.
                for size in (1_000_000, 100_000, 8_000, 8_000):
                    await _fill(connection, size)
                await asyncio.sleep(2.0)
                await connection.execute("drop table filler")
                await connection.execute("checkpoint")
            finally:
                connection.terminate()
            stage.fault("disk", t=began, seconds=(now() - began) / SECOND)

        stage = Stage(cluster, directory, lease=_PROFILE.lease, tablespace=place)
        act = Act(during)
        return await perform(stage, _PROFILE, seed, draw(_PROFILE, seed), say=say, act=act)


async def _fill(connection: Any, size: int) -> None:
    with suppress(asyncpg.DiskFullError):
        for _ in range(10_000):
            await connection.execute(
                "insert into filler select string_agg(gen_random_uuid()::text, '')"
                " from generate_series(1, $1::integer / 36)",
                size,
            )


async def pooled(directory: Path, seed: int, say: Say) -> Verdict:
    """Workers and producers reach the server through PgBouncer in transaction mode."""
    program = os.environ.get("PGBOUNCER") or shutil.which("pgbouncer", path=_PLACES)
    if program is None:
        raise CannotPlay("PgBouncer is not installed; PGBOUNCER may name its program")
    # asyncpg asks for the types of each connection in a query that takes seconds to compile. It
    # turns that off for the session, which here is another server's.
    settings = {"jit": "off"}
    async with (
        Cluster(directory / "pg", settings=settings) as cluster,
        _bouncer(program, cluster, directory) as port,
    ):
        stage = Stage(cluster, directory, lease=_PROFILE.lease)
        stage.proxy.upstream = port
        return await perform(stage, _PROFILE, seed, draw(_PROFILE, seed), say=say)


_PLACES = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"


@asynccontextmanager
async def _bouncer(program: str, cluster: Cluster, directory: Path) -> AsyncIterator[int]:
    port = free_port()
    settings = directory / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\n* = host={HOST} port={cluster.port} user=postgres\n"
        f"[pgbouncer]\nlisten_addr = {HOST}\nlisten_port = {port}\nauth_type = any\n"
        "unix_socket_dir =\npool_mode = transaction\ndefault_pool_size = 12\n"
        "max_client_conn = 300\nignore_startup_parameters = extra_float_digits\n"
    )
    settings.chmod(0o644)
    bouncer = _start(tied(cluster.account, program, str(settings)), directory / "pgbouncer.log")
    try:
        await asyncio.sleep(0.5)
        if bouncer.poll() is not None:
            said = (directory / "pgbouncer.log").read_text()[-1000:]
            raise RuntimeError(f"PgBouncer did not start:\n{said}")
        yield port
    finally:
        bouncer.kill()
        bouncer.wait()


def _start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as said:
        return subprocess.Popen(command, stdout=said, stderr=said)


async def user_table_deaths(directory: Path, seed: int, say: Say) -> Verdict:
    """Workers die again and again on a user's table, with rows at every number of attempts."""
    names = ("s0", "s1", "s2")

    async def during(stage: Stage) -> None:
        for name in names:
            await stage.start_worker(name, concurrency=12, batch_size=12, **snoozes.WORKER)
        rows = deaths = 0
        for wave in range(_WAVES):
            deadly = (7,) if wave == 1 else ()
            rows += await snoozes.add(stage, {"seconds": 0.7}, deadly)
            deaths += await snoozes.kill_crowds(stage, names, 6.0, seed + wave)
        say(f"{deaths} workers were killed while they held several of the {rows} rows")

    async with Cluster(directory / "pg") as cluster:
        stage = Stage(cluster, directory, lease=_PROFILE.lease)
        quiet = replace(_PROFILE, faults=0, jobs=200, workers=1, poison=0)
        return await perform(stage, quiet, seed, [], say=say, act=Act(during))


async def exactly_once(directory: Path, seed: int, say: Say) -> Verdict:
    """Handlers count in their transactions, while workers die and freeze and the server crashes."""
    names = ("c0", "c1", "c2")
    done: dict[str, int] = {}

    async def during(stage: Stage) -> None:
        await counting.install(stage)
        await counting.enqueue(stage, _COUNTS)
        for name in names:
            await stage.start_worker(name, **counting.WORKER)
        done.update(await counting.disturb(stage, names, seed))

    async with Cluster(directory / "pg") as cluster:
        stage = Stage(cluster, directory, lease=_PROFILE.lease)
        quiet = replace(_PROFILE, faults=0, jobs=200, workers=1, poison=0)
        verdict = await perform(stage, quiet, seed, [], say=say, act=Act(during))
        found, left = await counting.counted(cluster, stage.database)
    text = f"{_COUNTS} jobs have counted to {found}, and {left} are left"
    say(f"{text}; {done}")
    verdict.violations["exactly once"] = (
        [] if (found, left) == (_COUNTS, 0) else [Violation("exactly once", text)]
    )
    verdict.figures |= {"counted": found, **done}
    return verdict


def _upgrades(pace: upgrading.Pace) -> dict[str, Play]:
    """An upgrade from each release."""
    return {
        f"upgrade from {release}": partial(upgrading.upgrade, release=release, pace=pace)
        for release in upgrading.RELEASES
    }


ACTS: dict[str, Play] = {
    "failover to a synchronous standby": failover_sync,
    "failover to a lagging standby": failover_async,
    "PgBouncer in transaction mode": pooled,
    "outages longer than a lease": outages,
    "workers with wrong clocks": skewed_clocks,
    "full disk": full_disk,
    "old snapshot": old_snapshot,
    "deaths on a user's table": user_table_deaths,
    "counts in the handlers' transactions": exactly_once,
    **_upgrades(upgrading.LONG),
}

ACTS_ALONE: Mapping[str, Mapping[str, Play]] = {
    "acts": ACTS,
    "upgrade": _upgrades(upgrading.LONG),
    "upgrade-short": _upgrades(upgrading.SHORT),
}
"""The profiles that play these and nothing else."""


async def play_all(
    acts: Mapping[str, Play], seed: int, directory: Path, console: Console
) -> dict[str, Verdict]:
    """One after the other; what cannot be played here is said, not hidden."""
    verdicts: dict[str, Verdict] = {}
    for name, play in acts.items():
        place = directory / name.replace(" ", "-")
        place.mkdir()
        place.chmod(0o711)
        console.print(f"[bold]{name}[/bold]")
        try:
            verdict = await play(place, seed, console.print)
        except CannotPlay as reason:
            console.print(f"[yellow]SKIPPED: {reason}[/yellow]")
            continue
        verdict.history.plan["profile"] = name
        verdicts[name] = verdict
    return verdicts
