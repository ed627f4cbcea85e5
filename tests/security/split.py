"""One store of which each part is reached as the role that it is for, and no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.stores.postgres.grants import DatabaseRole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.stores.postgres.store import PostgresStore


class Part:
    """A port whose methods belong to several roles."""

    def __init__(self, otherwise: object, **methods: object) -> None:
        self._otherwise = otherwise
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        return getattr(self._methods.get(name, self._otherwise), name)


class RolesStore:
    """Producers insert, workers claim and settle, operators act, readers look."""

    dedicated = False

    def __init__(self, users: Mapping[DatabaseRole, PostgresStore]) -> None:
        producer, worker, operator, pruner, reader = (users[role] for role in DatabaseRole)
        self._as_worker = worker
        self.leases: Any = worker.leases
        self.wakeups: Any = worker.wakeups
        self.reports: Any = worker.reports
        self.jobs: Any = Part(
            reader.jobs,
            # A reader sees jobs without what they carry.
            get=operator.jobs,
            list_held=operator.jobs,
            list_running=operator.jobs,
            browse=operator.jobs,
            insert=producer.jobs,
            statuses=producer.jobs,
            requeue=operator.jobs,
            move=operator.jobs,
            leased_to=operator.jobs,
            remove=operator.jobs,
            raise_priority=operator.jobs,
            clear=operator.jobs,
            edit=operator.jobs,
            surroundings=reader.jobs,
            aggregate=pruner.jobs,
            prune=pruner.jobs,
            uncounted=pruner.jobs,
            clear_log=pruner.jobs,
            clear_statistics=pruner.jobs,
        )
        self.results: Any = Part(
            producer.results, progress=reader.results, list_progress=reader.results
        )
        self.upkeep: Any = Part(
            worker.upkeep, set_retention=pruner.upkeep, delete_expired=pruner.upkeep
        )
        self.schedules: Any = Part(
            worker.schedules,
            all=reader.schedules,
            set_paused=operator.schedules,
            trigger=operator.schedules,
            remove=operator.schedules,
        )
        self.breakers: Any = Part(worker.breakers, all=reader.breakers, force=operator.breakers)
        self.pauses: Any = Part(
            reader.pauses,
            pause=operator.pauses,
            resume=operator.pauses,
            record_act=operator.pauses,
        )

    def fork(self, role: str) -> RolesStore:
        return self

    @property
    def synchronous(self) -> bool:
        return self._as_worker.synchronous

    @property
    def needs_loop(self) -> bool:
        return self._as_worker.needs_loop

    def on(self, transaction: object, *, autocommit: bool = False) -> PostgresStore:
        """A caller's connection has the rights of the caller."""
        return self._as_worker.on(transaction, autocommit=autocommit)

    async def verify(self) -> None:
        await self._as_worker.verify()

    async def install(self, only: Any = None) -> list[str]:
        return await self._as_worker.install(only)

    async def notify_inserts(self, *, wanted: bool) -> None:
        await self._as_worker.notify_inserts(wanted=wanted)

    async def functions(self, *, wanted: bool) -> None:
        await self._as_worker.functions(wanted=wanted)

    async def notifies_inserts(self) -> bool:
        return await self._as_worker.notifies_inserts()

    async def uninstall(self) -> None:
        await self._as_worker.uninstall()

    async def close(self) -> None:
        return None
