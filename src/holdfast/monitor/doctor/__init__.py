"""`holdfast doctor`: everything that is checked, one module for each family of checks."""

from __future__ import annotations

from holdfast.errors import DatabaseError, InvalidInput
from holdfast.monitor.doctor.finding import Finding, Severity, error
from holdfast.monitor.doctor.fleet import check_fleet, check_listen
from holdfast.monitor.doctor.grants import check_grants
from holdfast.monitor.doctor.server import check_server
from holdfast.monitor.doctor.tables import check_leases, check_schema, check_tables
from holdfast.ports import Store
from holdfast.stores.postgres.store import PostgresStore

__all__ = ["Finding", "Severity", "examine"]


async def examine(store: Store, *, thorough: bool = True) -> list[Finding]:
    """Return what is wrong, the worst first.

    A thorough examination also scans the queue, and sends a NOTIFY and waits for it, for which a
    store needs a connection to spare.
    """
    if not isinstance(store, PostgresStore):
        raise InvalidInput("the in-memory store has no server that could be examined")
    found = await check_server(store)
    schema = await check_schema(store)
    if schema:
        # The other checks read tables that may not be there.
        return _worst_first([*schema, *found])
    try:
        found += await check_tables(store)
        found += await check_grants(store)
        found += await check_fleet(store)
        found += await check_leases(store) if thorough else []
    except DatabaseError as refused:
        if not refused.undefined:
            raise
        words = f"the tables are not as their version left them: {refused}"
        found.append(error("schema", words, "holdfast sql install"))
    if thorough:
        found += await check_listen(store)
    return _worst_first(found)


def _worst_first(found: list[Finding]) -> list[Finding]:
    return sorted(found, key=lambda each: each.severity is not Severity.ERROR)
