"""Does to the queue what a key of the dashboard asks for, and words the result."""

from __future__ import annotations

from holdfast.app import Holdfast
from holdfast.cli.connect import actor
from holdfast.cli.dashboard_view import EVERYTHING, Asking, View, Wish
from holdfast.cli.show import look_at_job
from holdfast.cli.values import parse_id
from holdfast.errors import ConnectionFailed, ConnectionLost, HoldfastError
from holdfast.models import JobId, Requeued
from holdfast.shell import shell_word

_REQUEUED = {
    Requeued.REQUEUED: "is queued again",
    Requeued.KEY_TAKEN: "stays held: another job has its dedupe key",
    Requeued.NOT_HELD: "is not held any more",
    Requeued.NOT_FOUND: "is gone",
}


async def grant(hf: Holdfast, view: View) -> None:
    """Do what the person asked for. A refusal is a note on the screen."""
    wish, view.wish = view.wish, None
    if wish is None:
        return
    try:
        await _do(hf, view, wish)
    except (ConnectionFailed, ConnectionLost):
        raise
    except HoldfastError as error:
        view.note = str(error)


async def _do(hf: Holdfast, view: View, wish: Wish) -> None:
    match wish.verb:
        case Asking.OPEN:
            view.opened(await look_at_job(hf, parse_id(wish.words)))
        case Asking.EXPLAIN:
            digits = wish.words.isascii() and wish.words.isdigit()
            found = await (
                hf.explain(parse_id(wish.words)) if digits else hf.explain(entrypoint=wish.words)
            )
            view.note = f"{found.sentence} {f'Try: {found.command}' if found.command else ''}"
        case Asking.PAUSE:
            await _pause(hf, view, wish)
        case Asking.FILTER | Asking.REASON:
            pass
        case _:
            await _requeue(hf, view, parse_id(wish.words))


async def _requeue(hf: Holdfast, view: View, job_id: JobId) -> None:
    became = await hf.queries.requeue_jobs([job_id], actor=actor())
    view.note = f"job {job_id} {_REQUEUED[became[job_id]]}"
    if view.job_id == job_id:
        view.opened(await look_at_job(hf, job_id))


async def _pause(hf: Holdfast, view: View, wish: Wish) -> None:
    everything = wish.words == EVERYTHING
    name = None if everything else wish.words
    shown = name or "everything"
    if any(each.name == (name or "") for each in await hf.queries.list_pauses()):
        await hf.queries.resume(name, everything=everything, actor=actor())
        view.note = f"{shown} goes on"
    elif not wish.reason:
        view.ask_reason(wish.words)
    else:
        await hf.queries.pause(name, everything=everything, reason=wish.reason, actor=actor())
        what = shell_word(name, positional=True) if name else "--all"
        view.note = f"{shown} is paused until `holdfast resume {what}`, or p again"
