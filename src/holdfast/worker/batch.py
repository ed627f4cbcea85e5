"""The values between the breaker gate, a claim and the dispatcher."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from holdfast.breaker import Admission, BreakerPolicy
    from holdfast.models import ClaimRule, Job


@dataclass(frozen=True, slots=True)
class Permit:
    """The state of the breaker that a job was claimed behind."""

    policy: BreakerPolicy
    generation: int
    expires: datetime | None = None
    """When a probe's permit expires. An outcome without a verdict returns it before."""


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """The limits of one claim: free capacity, as far as the breakers allow it."""

    rules: Sequence[ClaimRule]
    limit: int
    permits: Mapping[str, Permit] = field(default_factory=dict)
    """The permits by entrypoint. Entrypoints without a breaker need none."""
    probe: tuple[str, Admission] | None = None
    """The request is for the probes of this breaker alone, so the rest has yet to be claimed."""
    pause: float = math.inf
    """Seconds after which a breaker may answer otherwise."""


@dataclass(frozen=True, slots=True)
class ClaimedBatch:
    """The jobs that one claim returned."""

    jobs: Sequence[Job]
    sent: float
    """When the claim was sent. Leases are trusted from then on."""
    seconds: float
    """How long the database took to answer."""
    permits: Mapping[str, Permit]
