"""Sends the reminders that are due. In production: holdfast run reminders:hf"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

from holdfast import Holdfast, TableQueue

hf = Holdfast.connect(os.environ["HOLDFAST_DSN"])


@dataclass
class Snooze:
    """The columns that the handler reads."""

    id: int
    user_email: str
    subject: str | None
    attempts: int
    max_attempts: int


class MailboxBusy(Exception):
    """Worth another try soon."""


class NoSuchMailbox(Exception):
    """Hardly worth it, but the address may be mended by hand."""


def backoff(attempts: int, error: BaseException) -> timedelta:
    """Short, so that the example is; hours would be usual."""
    step = timedelta(seconds=0.2 if isinstance(error, MailboxBusy) else 0.4)
    return step * (attempts + 1)


@hf.table(TableQueue("email_snoozes", lease=timedelta(minutes=5), backoff=backoff))
async def remind(snooze: Snooze) -> None:
    try:
        deliver(snooze)
    except Exception as error:
        attempt = f"attempt {snooze.attempts + 1} of {snooze.max_attempts}"
        print(f"  failed  {snooze.user_email:<18} {snooze.subject} ({attempt}: {error})")
        raise
    print(f"  sent    {snooze.user_email:<18} {snooze.subject}")


def deliver(snooze: Snooze) -> None:
    """Stands for an SMTP server: one mailbox is busy at first, one is gone for good."""
    if snooze.user_email.startswith("gone@"):
        raise NoSuchMailbox("550 no such mailbox")
    if snooze.user_email.startswith("busy@") and not snooze.attempts:
        raise MailboxBusy("450 try again later")
