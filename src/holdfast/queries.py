"""`Queries` and `SyncQueries` under PgQueuer's path."""

from holdfast.client.queries import Queries, SyncQueries

__all__ = ["Queries", "SyncQueries"]
