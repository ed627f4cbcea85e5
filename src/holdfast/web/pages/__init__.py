"""The pages, in the order of the navigation."""

from __future__ import annotations

from holdfast.web.pages import (
    breakers,
    entrypoints,
    failures,
    job,
    jobs,
    log,
    more,
    overview,
    schedules,
    server,
    tables,
    workers,
)

PAGES = (
    overview.PAGE,
    jobs.PAGE,
    failures.PAGE,
    entrypoints.PAGE,
    workers.PAGE,
    schedules.PAGE,
    tables.PAGE,
    breakers.PAGE,
    log.PAGE,
    server.PAGE,
    job.PAGE,
    more.PAGE,
)
