"""`CompletionWatcher` under PgQueuer's path."""

from holdfast.client.completion import CompletionWatcher

__all__ = ["CompletionWatcher"]
