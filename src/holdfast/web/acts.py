"""What operators do. Each act is a form that was checked, and is logged with its actor."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from starlette.datastructures import QueryParams

from holdfast.client.job_checks import check_text
from holdfast.errors import InvalidInput
from holdfast.models import JobId, NewJob, Requeued
from holdfast.monitor.chosen import ids as matching
from holdfast.monitor.failures import held_groups
from holdfast.web.auth import Identity
from holdfast.web.pages.jobs import chosen_of

if TYPE_CHECKING:
    from holdfast.web.site import Site

_RATES = {"": None, "1": 1.0, "10": 10.0, "100": 100.0}


@dataclass(frozen=True, slots=True)
class Asked:
    """A form that an operator sent."""

    site: Site
    who: Identity
    form: Mapping[str, str]

    @property
    def actor(self) -> str:
        return f"web:{self.who.actor}"

    @property
    def reason(self) -> str | None:
        return check_text("reason", self.form.get("reason", "").strip()[:500] or None)

    def job(self) -> JobId:
        return _id(self.form.get("id", ""))

    def name(self) -> str:
        found = check_text("name", self.form.get("name", ""))
        if not found:
            raise InvalidInput("the form names nothing; reload the page and try again")
        return found

    def chosen(self, *verbs: str) -> tuple[str, str]:
        """What is to be done with which row: a button carries its verb, and the name of its row."""
        for verb in verbs:
            if name := check_text(verb, self.form.get(verb, "")):
                return verb, name
        return self.form.get("do", ""), self.name()

    async def jobs(self) -> list[JobId]:
        """Those that were selected, those of a group, or all that a filter chooses."""
        if group := self.form.get("group"):
            return await self._group(group)
        if self.form.get("all"):
            wanted = chosen_of(QueryParams(self.form.get("query", "").removeprefix("?")))
            async with self.site.reader.open() as look:
                return await matching(look, wanted)
        return [_id(word) for word in self.form.get("id", "").split()]

    async def _group(self, key: str) -> list[JobId]:
        async with self.site.reader.open() as look:
            groups = await held_groups(look)
        found = next((group for group in groups if group.key == key), None)
        if found is None:
            raise InvalidInput("the group is gone: none of its jobs is held any more")
        return list(found.jobs)


@dataclass(frozen=True, slots=True)
class Act:
    """A form's address, and what it does. What it returns is said on the next page."""

    path: str
    do: Callable[[Asked], Awaitable[str]]


def _id(word: str) -> JobId:
    if not re.fullmatch("[0-9]{1,18}", word, re.ASCII):
        raise InvalidInput(f"{word!r:.40} is not the id of a job")
    return JobId(int(word))


def _jobs(count: int) -> str:
    return f"{count:,} job{'s' if count != 1 else ''}"


async def _requeue(asked: Asked) -> str:
    ids, rate = await asked.jobs(), _RATES.get(asked.form.get("rate", ""))
    cap = int(cap) if re.fullmatch("[0-9]{1,6}", cap := asked.form.get("cap", "")) else None
    if rate is not None and len(ids) > 1:
        asked.site.errands.requeue(ids, rate, actor=asked.actor, reason=asked.reason, cap=cap)
        return f"Requeuing {_jobs(len(ids))}, {rate:g} a second."
    outcomes = await asked.site.hf.queries.requeue_jobs(
        ids, actor=asked.actor, reason=asked.reason, max_attempts=cap
    )
    went = [job_id for job_id, outcome in outcomes.items() if outcome is Requeued.REQUEUED]
    taken = sum(outcome is Requeued.KEY_TAKEN for outcome in outcomes.values())
    rest = len(outcomes) - len(went) - taken
    said = [f"{_jobs(len(went))} requeued"]
    if taken:
        said.append(f"{taken:,} kept: newer jobs have their dedupe keys")
    if rest:
        said.append(f"{rest:,} not held any more")
    return f"{'; '.join(said)}."


async def _cancel(asked: Asked) -> str:
    ids = await asked.jobs()
    gone = await asked.site.hf.queries.mark_job_as_cancelled(
        ids, actor=asked.actor, reason=asked.reason
    )
    return _removed("canceled", len(gone), len(ids))


async def _delete(asked: Asked) -> str:
    ids = await asked.jobs()
    gone = await asked.site.hf.queries.delete_jobs(ids, actor=asked.actor, reason=asked.reason)
    return _removed("deleted", len(gone), len(ids))


def _removed(verb: str, gone: int, asked: int) -> str:
    kept = f"; {asked - gone:,} could not be, because they run or are gone" if asked > gone else ""
    return f"{_jobs(gone)} {verb}{kept}."


async def _resolve(asked: Asked) -> str:
    reason = asked.reason
    if reason is None:
        raise InvalidInput("a job is resolved with a reason; say why it can never succeed")
    ids, queries = await asked.jobs(), asked.site.hf.queries
    held = [job.id for job in await queries.get_jobs(ids) if job.held_at is not None]
    gone = await queries.delete_jobs(held, actor=asked.actor, reason=reason)
    return _removed("resolved", len(gone), len(ids))


async def _edit(asked: Asked) -> str:
    job_id, queries = asked.job(), asked.site.hf.queries
    found = await queries.get_jobs([job_id])
    before = found[0].payload if found else None
    # Browsers send line ends of their own.
    text = asked.form.get("payload", "").replace("\r\n", "\n")
    payload = asked.site.redaction.restored(text, before)
    if not await queries.edit_job(job_id, payload, actor=asked.actor, reason=asked.reason):
        return f"Job {job_id} is not held, so its payload stays."
    if asked.form.get("then") != "requeue":
        return f"The payload of job {job_id} was replaced."
    return f"Payload replaced. {await _requeue(asked)}"


async def _enqueue(asked: Asked) -> str:
    form = asked.form
    job = NewJob(
        form.get("entrypoint", "").strip(),
        form.get("payload", "").replace("\r\n", "\n").encode() or None,
        dedupe_key=form.get("key", "").strip() or None,
        headers={"enqueued_by": asked.actor},
    )
    [job_id] = await asked.site.hf.queries.enqueue_many([job])
    return f"Job {job_id} enqueued."


async def _schedule(asked: Asked) -> str:
    actor, schedules = asked.actor, asked.site.hf.schedules
    verb, name = asked.chosen("run", "pause", "resume")
    match verb:
        case "pause":
            await schedules.pause(name, actor=actor)
            return f"Schedule {name} is paused."
        case "resume":
            await schedules.resume(name, actor=actor)
            return f"Schedule {name} goes on with its next tick."
        case _:
            job_id = await schedules.run_now(name, actor=actor)
            return f"Job {job_id} of schedule {name} enqueued."


_FOR = {"1h": timedelta(hours=1), "1d": timedelta(days=1)}


async def _pause(asked: Asked) -> str:
    name, everything = asked.form.get("name") or None, bool(asked.form.get("everything"))
    what = "Everything" if everything else name
    if asked.reason is None:
        raise InvalidInput("a pause takes a reason, so that others know why nothing starts")
    until = _FOR.get(asked.form.get("for", ""))
    await asked.site.hf.queries.pause(
        name, reason=asked.reason, until=until, everything=everything, actor=asked.actor
    )
    return f"{what} is paused. Running jobs finish."


async def _resume(asked: Asked) -> str:
    name, everything = asked.form.get("name") or None, bool(asked.form.get("everything"))
    await asked.site.hf.queries.resume(
        name, everything=everything, actor=asked.actor, reason=asked.reason
    )
    return f"{'Everything' if everything else name} goes on."


async def _breaker(asked: Asked) -> str:
    queries = asked.site.hf.queries
    verb, name = asked.chosen("open", "close")
    if verb == "open":
        await queries.open_breaker(name, actor=asked.actor, reason=asked.reason)
        return f"Breaker {name} is held open."
    await queries.close_breaker(name, actor=asked.actor)
    return f"Breaker {name} is closed."


async def _release(asked: Asked) -> str:
    worker = asked.name()
    ids = await asked.site.hf.queries.release_worker(worker, actor=asked.actor, reason=asked.reason)
    return f"{_jobs(len(ids))} of {worker} released."


async def _stop(asked: Asked) -> str:
    stopped = asked.site.errands.stop(_id(asked.form.get("number", "")), asked.actor)
    if stopped is None:
        return "It has ended already."
    await asked.site.hf.store.pauses.record_act(
        "stop requeue", _jobs(stopped.total), actor=asked.actor, reason=asked.reason
    )
    return "Stopped. Jobs that were not reached stay held."


ACTS = (
    Act("/act/requeue", _requeue),
    Act("/act/cancel", _cancel),
    Act("/act/delete", _delete),
    Act("/act/resolve", _resolve),
    Act("/act/edit", _edit),
    Act("/act/enqueue", _enqueue),
    Act("/act/pause", _pause),
    Act("/act/resume", _resume),
    Act("/act/schedule", _schedule),
    Act("/act/breaker", _breaker),
    Act("/act/release", _release),
    Act("/act/stop", _stop),
)
