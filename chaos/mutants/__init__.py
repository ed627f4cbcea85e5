"""Planted bugs. Each must be caught; one that is not is a hole in the harness."""

from chaos.mutants import (
    clients,
    counting,
    counting_tasks,
    fencing,
    machinery,
    sessions,
    settling,
    snoozing,
    waking,
)
from chaos.mutants.base import MUTANTS, plant

__all__ = [
    "MUTANTS",
    "clients",
    "counting",
    "counting_tasks",
    "fencing",
    "machinery",
    "plant",
    "sessions",
    "settling",
    "snoozing",
    "waking",
]
