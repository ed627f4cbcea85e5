"""What a check found, how bad it is, and the command that fixes it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """A warning can wait for a person. With an error jobs do not run, or may be lost."""

    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor."""

    check: str
    """A stable name for scripts."""
    severity: Severity
    finding: str
    command: str


def warning(check: str, finding: str, command: str) -> Finding:
    return Finding(check, Severity.WARNING, finding, command)


def error(check: str, finding: str, command: str) -> Finding:
    return Finding(check, Severity.ERROR, finding, command)
