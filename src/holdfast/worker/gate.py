"""Asks the circuit breakers before a claim, stamps what they let through, and tells them after."""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.breaker import Admission, BreakerPolicy, Verdicts
from holdfast.clock import monotonic
from holdfast.errors import DatabaseError, InvalidRow, RetryRequested
from holdfast.retry import RemoteError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from datetime import datetime

    from holdfast.models import Job, Want
    from holdfast.ports import Breakers
    from holdfast.worker.hand import Hand, Lease

    Take = Callable[[Sequence[Want], int], Awaitable[list[Job]]]

logger = logging.getLogger("holdfast.worker")

_LOOK_AGAIN = 1.0
"""Seconds after which a breaker that is not closed is looked at again: another worker's probe may
have closed it, and work may have come for a probe of ours."""


@dataclass(frozen=True, slots=True)
class Permit:
    """What a job was claimed under."""

    policy: BreakerPolicy
    generation: int
    expires: datetime | None = None
    """Of a probe's permit, which is given back if the job says nothing about the dependency."""


def judge(error: BaseException, policy: BreakerPolicy) -> bool | None:
    """False: the dependency may be down. None: the error says nothing about it."""
    told = error
    if isinstance(error, RetryRequested) and error.__cause__ is not None:
        told = error.__cause__
    if isinstance(told, RemoteError):
        # Of an exception in another process only the name of its class comes back.
        return None if told.exception_type in {kind.__name__ for kind in policy.ignore} else False
    return None if isinstance(told, (InvalidRow, *policy.ignore)) else False


class Gate:
    """What stands between a worker and the work behind circuit breakers."""

    def __init__(
        self,
        wants: Sequence[Want],
        policies: Mapping[str, BreakerPolicy],
        hand: Hand,
        *,
        claiming: Breakers,
        settling: Breakers,
    ) -> None:
        self._all = wants
        self._behind = dict(policies)
        self._policies = {policy.name: policy for policy in policies.values()}
        self._hand = hand
        self._claiming = claiming
        self._settling = settling
        self._permits: dict[str, Permit] = {}
        self._fruitless: dict[str, float] = {}
        self.wants = wants
        """What the last claim was let through for."""
        self.pause = math.inf
        """Seconds after which a breaker may answer otherwise."""
        self.probed = False
        """The last claim was one of probes alone, so the rest has yet to be looked for."""

    @property
    def guards(self) -> bool:
        """Whether there is a breaker at all."""
        return bool(self._policies)

    async def claim(self, free: int, take: Take) -> list[Job]:
        """Claim what the breakers let through: the permitted probes of one, or all other work."""
        self.probed, self.pause = False, math.inf
        if not self.guards:
            return await take(self._all, free)
        # Wanting none is a mere look, which changes nothing.
        admissions = await self._claiming.admit(list(self._policies.values()), 0)
        unreported = self._unreported()
        for name in self._policies.keys() - unreported:
            if self._may_probe(name, admissions[name]):
                admissions |= await self._claiming.admit([self._policies[name]], free)
                if admissions[name].allowance:
                    return await self._probe(name, admissions[name], take)
        closed = {name for name, found in admissions.items() if found.allowance is None}
        self.pause = min(map(self._wait, admissions, admissions.values()))
        self._let_through(closed - unreported, admissions)
        return await take(self.wants, free) if self.wants else []

    def permit(self, entrypoint: str) -> Permit | None:
        """What a job of the last claim was claimed under."""
        return self._permits.get(entrypoint)

    async def tell(self) -> None:
        """Report the outcomes that are settled. Whatever comes of that, settling goes on."""
        leases = list(self._hand.untold)
        if not leases:
            return
        try:
            await self._report(sorted(leases, key=lambda lease: lease.began + lease.seconds_run))
        except Exception as error:
            logger.warning("breakers were not told of %d outcomes: %s", len(leases), error)
        finally:
            self._hand.told(leases)

    async def _report(self, leases: Sequence[Lease]) -> None:
        verdicts: defaultdict[tuple[str, int], list[bool]] = defaultdict(list)
        unused: Counter[tuple[str, int, datetime]] = Counter()
        for lease in leases:
            if lease.permit is None:
                continue
            name, generation, expires = (
                lease.permit.policy.name,
                lease.permit.generation,
                lease.permit.expires,
            )
            if lease.verdict is not None:
                verdicts[name, generation].append(lease.verdict)
            elif expires is not None:
                unused[name, generation, expires] += 1
        if verdicts:
            await self._settling.record(
                [
                    Verdicts(self._policies[name], generation, tuple(some))
                    for (name, generation), some in verdicts.items()
                ]
            )
        for permit, count in unused.items():
            await self._settling.give_back(*permit, count)

    def _unreported(self) -> set[str]:
        """Breakers that have yet to hear of a failure here: it may be the one that opens them."""
        leases = (*self._hand.snapshot(), *self._hand.untold)
        return {
            lease.permit.policy.name for lease in leases if lease.permit and lease.verdict is False
        }

    def _may_probe(self, name: str, admission: Admission) -> bool:
        ready = admission.allowance == 0 and admission.wait is not None and not admission.wait
        return ready and monotonic() >= self._fruitless.get(name, 0.0)

    async def _probe(self, name: str, admission: Admission, take: Take) -> list[Job]:
        self._let_through({name}, {name: admission})
        self.probed = True
        allowance = admission.allowance or 0
        try:
            jobs = await take(self.wants, allowance)
        except DatabaseError:
            await self._give_back(name, admission, allowance)
            raise
        used = sum(job.claim_token is not None for job in jobs)
        if not used:
            self._fruitless[name] = monotonic() + _LOOK_AGAIN
        await self._give_back(name, admission, allowance - used)
        return jobs

    async def _give_back(self, name: str, admission: Admission, count: int) -> None:
        if count and admission.expires is not None:
            with suppress(DatabaseError):
                await self._claiming.give_back(name, admission.generation, admission.expires, count)

    def _let_through(self, names: set[str], admissions: Mapping[str, Admission]) -> None:
        self.wants = []
        self._permits = {}
        for want in self._all:
            policy = self._behind.get(want.entrypoint)
            if policy is None and not self.probed:
                self.wants.append(want)
            elif policy is not None and policy.name in names:
                found = admissions[policy.name]
                self.wants.append(want)
                self._permits[want.entrypoint] = Permit(policy, found.generation, found.expires)

    def _wait(self, name: str, admission: Admission) -> float:
        if admission.allowance is None or admission.wait is None:
            return math.inf
        wait = admission.wait.total_seconds() or self._fruitless.get(name, 0.0) - monotonic()
        return min(_LOOK_AGAIN, max(0.0, wait))
