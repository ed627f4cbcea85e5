"""The breaker gate: the claims that circuit breakers allow a worker, and its reports to them."""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.breaker import Verdicts
from holdfast.clock import monotonic
from holdfast.errors import DatabaseError, InvalidRow
from holdfast.repeated import RepeatedLog
from holdfast.retry import RemoteError, blamed
from holdfast.worker.batch import ClaimRequest, Permit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from holdfast.breaker import Admission, BreakerPolicy
    from holdfast.models import ClaimRule, Job
    from holdfast.ports import Breakers
    from holdfast.worker.leases import Lease, LeaseSet

logger = logging.getLogger("holdfast.worker")

_RECHECK_SECONDS = 1.0
"""A breaker that is not closed is asked again after this time. Another worker's probe may have
closed it, or work for a probe of this worker may have been enqueued."""


def judge(error: BaseException, policy: BreakerPolicy) -> bool | None:
    """Return the verdict of an error on the dependency. False means that it may be down, None that
    the error says nothing about it."""
    cause = blamed(error)
    if isinstance(cause, RemoteError):
        # An exception in another process comes back by the name of its class alone.
        return None if cause.exception_type in {kind.__name__ for kind in policy.ignore} else False
    return None if isinstance(cause, (InvalidRow, *policy.ignore)) else False


class BreakerGate:
    """Decides what a worker may claim of the entrypoints behind circuit breakers."""

    def __init__(
        self,
        rules: Sequence[ClaimRule],
        policies: Mapping[str, BreakerPolicy],
        lease_set: LeaseSet,
        *,
        claiming: Breakers,
        settling: Breakers,
    ) -> None:
        self._all = rules
        self._behind = dict(policies)
        self._policies = {policy.name: policy for policy in policies.values()}
        self._lease_set = lease_set
        self._claiming = claiming
        self._settling = settling
        self.guards = bool(policies)
        """Whether there is a breaker at all."""
        self._fruitless: dict[str, float] = {}
        self._log = RepeatedLog(logger)

    async def request(self, free: int) -> ClaimRequest:
        """Return the claim to send: the permitted probes of one breaker, or all other work."""
        if not self.guards:
            return ClaimRequest(self._all, free)
        # A failure that is reported while the database is asked may not be in its answer yet.
        unreported = self._unreported()
        # A request for zero permits reads the breaker and changes nothing.
        admissions = await self._claiming.admit(list(self._policies.values()), 0)
        unreported |= self._unreported()
        for name in self._policies.keys() - unreported:
            if self._may_probe(name, admissions[name]):
                admissions |= await self._claiming.admit([self._policies[name]], free)
                if admissions[name].allowance:
                    return self._probe(name, admissions[name])
        closed = {name for name, found in admissions.items() if found.allowance is None}
        pause = min(map(self._wait, admissions, admissions.values()))
        rules, permits = self._behind_closed(closed - unreported, admissions)
        return ClaimRequest(rules, free, permits, pause=pause)

    async def return_unused(self, request: ClaimRequest, jobs: Sequence[Job] | None) -> None:
        """Return the permits of a probing request that no job was claimed with.

        `jobs` is None when the claim failed.
        """
        if request.probe is None:
            return
        name, admission = request.probe
        used = sum(job.claim_token is not None for job in jobs or ())
        if jobs is not None and not used:
            self._fruitless[name] = monotonic() + _RECHECK_SECONDS
        unused = request.limit - used
        if unused and admission.expires is not None:
            with suppress(DatabaseError):
                await self._claiming.return_permits(
                    name, admission.generation, admission.expires, unused
                )

    async def report(self) -> None:
        """Report settled outcomes to their breakers. An error is logged and settling goes on."""
        leases = list(self._lease_set.unreported)
        if not leases:
            return
        try:
            await self._send(sorted(leases, key=lambda lease: lease.began + lease.seconds_run))
        except Exception as error:
            self._log.warning(
                "%d outcomes were not reported to their breakers: %s", len(leases), error
            )
        finally:
            self._lease_set.reported(leases)

    async def _send(self, leases: Sequence[Lease]) -> None:
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
            await self._settling.return_permits(*permit, count)

    def _unreported(self) -> set[str]:
        """Names of breakers with a failure here that is not reported yet. It may open them."""
        leases = (*self._lease_set.snapshot(), *self._lease_set.unreported)
        return {
            lease.permit.policy.name for lease in leases if lease.permit and lease.verdict is False
        }

    def _may_probe(self, name: str, admission: Admission) -> bool:
        ready = admission.allowance == 0 and admission.wait is not None and not admission.wait
        return ready and monotonic() >= self._fruitless.get(name, 0.0)

    def _probe(self, name: str, admission: Admission) -> ClaimRequest:
        """Return a request for the work behind one breaker, as much as it permits."""
        permits = {
            rule.entrypoint: Permit(policy, admission.generation, admission.expires)
            for rule in self._all
            if (policy := self._behind.get(rule.entrypoint)) is not None and policy.name == name
        }
        rules = [rule for rule in self._all if rule.entrypoint in permits]
        return ClaimRequest(rules, admission.allowance or 0, permits, (name, admission))

    def _behind_closed(
        self, closed: set[str], admissions: Mapping[str, Admission]
    ) -> tuple[list[ClaimRule], dict[str, Permit]]:
        """Return the rules behind closed breakers or none, and the permits of the former."""
        rules: list[ClaimRule] = []
        permits: dict[str, Permit] = {}
        for rule in self._all:
            policy = self._behind.get(rule.entrypoint)
            if policy is None:
                rules.append(rule)
            elif policy.name in closed:
                found = admissions[policy.name]
                rules.append(rule)
                permits[rule.entrypoint] = Permit(policy, found.generation, found.expires)
        return rules, permits

    def _wait(self, name: str, admission: Admission) -> float:
        if admission.allowance is None or admission.wait is None:
            return math.inf
        wait = admission.wait.total_seconds() or self._fruitless.get(name, 0.0) - monotonic()
        return min(_RECHECK_SECONDS, max(0.0, wait))
