"""Reads the facts of an explanation through the ports of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import DatabaseError, JobNotFound, SchemaError
from holdfast.explanation import (
    Code,
    Explanation,
    Facts,
    Surroundings,
    explain,
    nothing_waits,
    paused,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from holdfast.models import JobId
    from holdfast.ports import Store


async def explain_job(
    store: Store, job_id: JobId, behind_breaker: Mapping[str, str]
) -> Explanation:
    """Say why a job is not running. JobNotFound where neither queue nor log knows it."""
    return await _on_tables(store, lambda: _explain_job(store, job_id, behind_breaker))


async def explain_entrypoint(
    store: Store, entrypoint: str, behind_breaker: Mapping[str, str]
) -> Explanation:
    """Say why the next job of an entrypoint is not running."""
    return await _on_tables(store, lambda: _explain_entrypoint(store, entrypoint, behind_breaker))


async def _on_tables(store: Store, answer: Callable[[], Awaitable[Explanation]]) -> Explanation:
    """Return the answer, or what is wrong with the tables that it would be read from."""
    try:
        await store.verify()
        return await answer()
    except SchemaError as error:
        return Explanation(Code.SCHEMA, str(error), command=error.command)
    except DatabaseError as error:
        if not error.undefined:
            raise
        sentence = f"The tables are not as their version left them: {error}"
        return Explanation(Code.SCHEMA, sentence, command="holdfast doctor")


async def _explain_job(
    store: Store, job_id: JobId, behind_breaker: Mapping[str, str]
) -> Explanation:
    found = await store.jobs.get([job_id])
    job = found[0] if found else None
    history = await store.jobs.history(job_id)
    if job is None and not history:
        raise JobNotFound(job_id)
    surroundings = Surroundings() if job is None else await store.jobs.surroundings(job_id)
    return explain(
        Facts(
            now=await store.jobs.now(),
            job_id=job_id,
            job=job,
            history=history,
            workers=await store.jobs.workers(),
            pauses=await store.pauses.all(),
            breakers=await store.breakers.all(),
            behind_breaker=behind_breaker,
            surroundings=surroundings,
        )
    )


async def _explain_entrypoint(
    store: Store, entrypoint: str, behind_breaker: Mapping[str, str]
) -> Explanation:
    job_id = await store.jobs.first_of(entrypoint)
    if job_id is None:
        # The rows of a table queue are not here, and a pause is why none of them starts.
        found = paused(entrypoint, await store.pauses.all())
        return found or nothing_waits(entrypoint, await store.jobs.workers())
    return await _explain_job(store, job_id, behind_breaker)
