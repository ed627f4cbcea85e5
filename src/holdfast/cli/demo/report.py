"""The report of the demo when all is settled: the incidents, commands to try next, and the
ledger."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from holdfast.app import Holdfast
from holdfast.cli.output import line, table
from holdfast.demo.crew import Crew
from holdfast.demo.handlers import POISON
from holdfast.demo.ledger import Account, Ledger
from holdfast.demo.nemesis import Incident
from holdfast.demo.producer import Producer
from holdfast.demo.worker import Refusal

_COLUMNS = ("entrypoint", "enqueued", "successful", "exception", "failed", "canceled", "waiting")
_SHOWN = 5


def print_ledger(ledger: Ledger, skipped: int) -> None:
    line()
    line("The ledger: what was enqueued, and where the database says each job is.", style="bold")
    rows = [_cells(account) for account in (*ledger.accounts, ledger.total)]
    table((*_COLUMNS, "adds up"), rows, right=" ".join(_COLUMNS[1:]))
    total = ledger.total
    line(
        f"{total.enqueued} enqueued = {total.successful} successful + {total.exception} exception "
        f"+ {total.failed} failed (held) + {total.canceled} canceled + {total.waiting} waiting: "
        + ("it adds up." if ledger.balanced else "IT DOES NOT ADD UP."),
        style="bold green" if ledger.balanced else "bold red",
    )
    if ledger.ended_twice:
        line(f"Jobs with more than one end: {list(ledger.ended_twice)}", style="bold red")
    line(f"Besides, {skipped} jobs were not enqueued because their dedupe key was taken.")


def _cells(account: Account) -> Sequence[str | Text]:
    counts = (
        account.enqueued,
        account.successful,
        account.exception,
        account.failed,
        account.canceled,
        account.waiting,
    )
    verdict = Text("yes", style="green") if account.balanced else Text("NO", style="bold red")
    return (account.entrypoint, *(str(count) for count in counts), verdict)


async def print_recoveries(
    hf: Holdfast, ledger: Ledger, incidents: Sequence[Incident], crew: Crew
) -> None:
    line()
    line("What was recovered.", style="bold")
    jobs = {recovery.job for recovery in ledger.recoveries}
    line(f"{len(ledger.recoveries)} leases expired; {len(jobs)} jobs were given to another worker.")
    for incident in incidents:
        ends = Counter((await hf.store.jobs.statuses(incident.jobs)).values())
        told = ", ".join(f"{count} {status}" for status, count in sorted(ends.items()))
        line(
            f"  worker {incident.number} {incident.what}: {len(incident.jobs)} jobs recovered "
            f"after {incident.seconds:.1f} s; in the end {told or 'none'}"
        )
    line(f"  {crew.deaths} workers died and were replaced")


async def print_refusals(hf: Holdfast, refused: Sequence[Refusal], crew: Crew) -> None:
    line()
    line("Which late writes were refused.", style="bold")
    if not refused:
        line("None: no worker was late with a write.")
    for refusal in refused[:_SHOWN]:
        history = await hf.queries.job_history(refusal.job)
        owner = crew.number_of(history[-1].claimed_by) if history else None
        stands = f"worker {owner}'s {history[-1].status}" if owner else "another's outcome"
        line(
            f"  job {refusal.job} ({refusal.entrypoint}): worker {refusal.worker} came back with "
            f"'{refusal.outcome}', {stands} stands"
        )
    if len(refused) > _SHOWN:
        line(f"  and {len(refused) - _SHOWN} more")


def print_next(directory: Path, producer: Producer, held: Sequence[int]) -> None:
    """Commands that work on what is there now."""
    command, where = _command(), f"--embedded={short(directory)}"
    poisoned = producer.ids[POISON][0]
    some = " ".join(str(job_id) for job_id in held[:2])
    line()
    line(f"The data is in {short(directory)}; remove the folder when you are done.", style="bold")
    line("Try next:")
    tries = [
        (f"failed {where}", "the jobs that are held, and why"),
        (f"show {poisoned} {where}", "the whole life of the poison job"),
        (f"requeue {some} {where}", "send held jobs back to the queue"),
        (f"run holdfast.demo.handlers:main -- {short(directory)}", "a worker for them"),
        (f"log -n 20 {where}", "the newest lines of the log"),
        (f"stats {where}", "how much was done, by the minute"),
        (f"dashboard {where}", "the live view of this queue"),
        (f"web {where}", "the same in a browser"),
    ]
    longest = max(len(meaning) for _, meaning in tries)
    for words, meaning in tries:
        line(f"  {meaning:<{longest}}  {command} {words}")


def _command() -> str:
    """How this command was called, if it is not found by its plain name."""
    called = Path(sys.argv[0])
    found = shutil.which("holdfast")
    if called.name != "holdfast":
        return "holdfast"
    return "holdfast" if found and Path(found).samefile(called) else short(called)


def short(path: Path) -> str:
    """Relative where that is shorter to type."""
    absolute = path.absolute()
    try:
        return str(absolute.relative_to(Path.cwd()))
    except ValueError:
        return str(absolute)
