"""The statements of the web page, by name, and the filters that they share."""

from __future__ import annotations

from holdfast.stores.postgres.binding import HIDDEN_COLUMNS, JOB_COLUMNS

LISTED_COLUMNS = tuple(name for name in JOB_COLUMNS if name not in (*HIDDEN_COLUMNS, "claim_token"))
"""A list shows jobs without payload and headers, because a page of payloads could be large."""

LISTED = ", ".join(f"j.{name}" for name in LISTED_COLUMNS)

CHOSEN = """(:status::text is null or j.status::text = :status::text)
  and (:entrypoint::text is null or j.entrypoint = :entrypoint::text)
  and (:worker::text is null or j.claimed_by = :worker::text)
  and (:error::text is null or position(lower(:error::text) in lower(j.last_error)) > 0)
  and (:key::text is null or position(:key::text in j.dedupe_key) > 0)
  and (:header::text is null or case when :header_value::text is null then j.headers ? :header::text
       else j.headers ->> :header::text = :header_value::text end)
  and (:since::interval is null
       or j.created >= coalesce(:now::timestamptz, clock_timestamp()) - :since::interval)"""
"""The filters of a list. One that is not given does not restrict."""

MOST_HELD = 5000
"""The newest held jobs, among which failures are grouped. Written into the statement: a plan for an
unknown number would be one for very many."""

LISTS = ("page_jobs", "page_jobs_of", "page_jobs_held", "page_jobs_leased")
"""Each has a twin `name:hidden` for users whose privileges end before headers."""
