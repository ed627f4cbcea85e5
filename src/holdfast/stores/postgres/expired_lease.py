"""Makes the lease of a job run out, for tests of applications."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.stores.postgres.store import PostgresStore


async def expire(store: PostgresStore, job_id: int) -> bool:
    """Age the row, and the record of its claim, by which a sweep finds it."""
    table, leases = store.names.table(), store.names.table("_leases")
    aged = f"""
        with aged as (
            update {table}
            set heartbeat = heartbeat - 2 * lease, claimed_at = claimed_at - 2 * lease
            where id = $1::bigint and lease is not null returning claim_token
        )
        update {leases} set claimed_at = claimed_at - 2 * lease
        where token = any(array(select claim_token from aged)) returning token
    """
    return bool(await store.driver.fetch(aged, (job_id,)))
