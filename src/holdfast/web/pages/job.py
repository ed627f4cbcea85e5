"""One job: why it is not running, its leases on a line of time, and what it carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.client.explain import explain_job
from holdfast.errors import JobNotFound
from holdfast.explanation import Code, Facts, explain
from holdfast.lifecycle import FINAL, Status
from holdfast.models import Job, JobId, LogEntry
from holdfast.monitor import pages
from holdfast.stores.postgres import rows
from holdfast.web import ledger
from holdfast.web.charts import far
from holdfast.web.visit import MAX_ID, Page, Visit
from holdfast.web.words import clock, cut_error, error_line, stopped

ACTS = ("edit", "resolve", "delete", "cancel")
"""Sheets that the page opens, by the parameter `do`."""


_EXPLAINING = 9
"""Statements that an explanation sends at most."""


@dataclass(frozen=True, slots=True)
class Explained:
    """Why a job is not running."""

    head: str
    rest: str
    code: str
    change: str
    command: str
    stops: bool = False
    """`head` is a sentence of its own, behind the state and a full stop."""


async def load(visit: Visit) -> dict[str, Any]:
    job_id = JobId(visit.item["id"])
    if job_id > MAX_ID:
        raise JobNotFound(job_id)
    found = [rows.job(row) for row in await visit.look.run("get", ids=[job_id])]
    history = [rows.log_entry(row) for row in await visit.look.run("history", job_id=job_id)]
    job = found[0] if found else None
    last = history[-1] if history else None
    if job is None and last is None:
        raise JobNotFound(job_id)
    lines = ledger.rows(history, job, visit.now)
    kept, left_out = ledger.folded(lines)
    drawn, axis = ledger.drawn(kept, visit.now)
    return {
        "id": job_id,
        "job": job,
        "entrypoint": job.entrypoint if job else last.entrypoint if last else "",
        "status": job.status if job else _ending(history),
        "explained": await _explain(visit, job, history),
        "ledger": drawn,
        "axis": axis,
        "left_out": left_out,
        "leases": sum(row.claimed for row in lines),
        "by_hand": sum(not row.claimed for row in lines),
        "waited": ledger.waited(lines) + ledger.waits(job, visit.now),
        "ran": ledger.ran(lines) if any(row.claimed for row in lines) else None,
        "enqueued": job.created
        if job
        else next((e.enqueued_at for e in history if e.enqueued_at), None),
        "last": last,
        "do": _sheet(visit, job),
        "progress": await _progress(visit, job),
        "result": await _result(visit, job),
        "editable": visit.site.redaction.editable(job) if job else None,
        **_carried(visit, job),
    }


def _ending(history: list[LogEntry]) -> Status:
    return next((e.status for e in reversed(history) if e.status in FINAL), history[-1].status)


def _sheet(visit: Visit, job: Job | None) -> str:
    wanted = visit.params.get("do", "")
    return wanted if job is not None and visit.who.acts and wanted in ACTS else ""


def _carried(visit: Visit, job: Job | None) -> dict[str, Any]:
    redaction = visit.site.redaction
    if job is None:
        return {"payload": None, "headers": [], "hidden_payload": False}
    hidden = not visit.look.sees_payloads
    form = visit.params.get("as", "")
    return {
        "payload": redaction.payload(job, visit.who, form),
        "headers": redaction.headers(job.headers, visit.who),
        "hidden_payload": hidden,
    }


async def _progress(visit: Visit, job: Job | None) -> dict[str, Any] | None:
    if job is None or job.status is not Status.PICKED:
        return None
    found = (await pages.progress(visit.look, [job.id])).get(job.id)
    return {"bar": far(found), "updated": found.updated} if found else None


async def _result(visit: Visit, job: Job | None) -> dict[str, Any] | None:
    """What a task returned, for as long as that is kept."""
    if job is not None or not visit.look.sees_results:
        return None
    found = await visit.look.run("results", ids=[visit.item["id"]])
    for _, value, error in found:
        shown = None if value is None else visit.site.redaction.result(value, visit.who)
        return {"shown": shown, "error": error}
    return None


async def _explain(visit: Visit, job: Job | None, history: list[LogEntry]) -> Explained:
    if job is None:
        return _ended(visit, history)
    if job.status is Status.FAILED:
        at = clock(job.held_at, visit.now) if job.held_at else "long ago"
        why = job.last_error or "all attempts are spent"
        found = explain(Facts(visit.now, job.id, job, history))
        return Explained(
            stopped(f"since {at}: {cut_error(why)}"),
            "It stays as it is until a person requeues, resolves or deletes it.",
            str(found.code), "never", found.command or "",
        )  # fmt: skip
    behind = {name: policy.name for name, policy in visit.site.hf.breakers.items()}
    found = await explain_job(visit.look.store, job.id, behind)
    visit.look.statements += _EXPLAINING
    change = clock(found.until, visit.now) if found.until else ""
    return Explained(found.sentence, "", str(found.code), change, found.command or "", stops=True)


def _ended(visit: Visit, history: list[LogEntry]) -> Explained:
    status = _ending(history)
    final = next((e for e in reversed(history) if e.status is status), history[-1])
    who = f" by {final.actor}" if final.actor else ""
    error = error_line(final)
    about = f": {cut_error(error)}" if error else ""
    return Explained(
        stopped(f"at {clock(final.created, visit.now)}{who}{about}"),
        "It has left the queue, and its payload with it.",
        str(Code.ENDED), "never", f"holdfast show {final.job_id}",
    )  # fmt: skip


PAGE = Page("Job", "/jobs/{id:int}", "job.html", load)
