"""Reads the facts of an explanation through the ports of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import JobNotFound, SchemaError
from holdfast.explanation import Code, Explanation, Facts, Surroundings, explain, nothing_waits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.models import JobId
    from holdfast.ports import Store


async def explain_job(
    store: Store, job_id: JobId, behind_breaker: Mapping[str, str]
) -> Explanation:
    """Say why a job is not running. JobNotFound where neither queue nor log knows it."""
    try:
        await store.verify()
    except SchemaError as error:
        return Explanation(Code.SCHEMA, str(error), command="holdfast upgrade")
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


async def explain_entrypoint(
    store: Store, entrypoint: str, behind_breaker: Mapping[str, str]
) -> Explanation:
    """Say why the next job of an entrypoint is not running."""
    job_id = await store.jobs.first_of(entrypoint)
    if job_id is None:
        return nothing_waits(entrypoint, await store.jobs.workers())
    return await explain_job(store, job_id, behind_breaker)
