"""`Queries` and `SyncQueries` under the path that PgQueuer's users know."""

from holdfast.client.queries import Queries, SyncQueries

__all__ = ["Queries", "SyncQueries"]
