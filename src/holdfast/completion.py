"""`CompletionWatcher` under the path that PgQueuer's users know."""

from holdfast.client.completion import CompletionWatcher

__all__ = ["CompletionWatcher"]
