"""The web page of a queue: `app(hf, auth=…)` is an ASGI application to serve or to mount."""

from __future__ import annotations

from holdfast.errors import MissingDependency

try:
    import jinja2
    import starlette
except ModuleNotFoundError as error:
    raise MissingDependency(
        f"the web page needs {error.name}, which is not installed; run: pip install 'holdfast[web]'"
    ) from None

from holdfast.web.application import WebApp, app
from holdfast.web.auth import Identity, Role, Tokens

__all__ = ["Identity", "Role", "Tokens", "WebApp", "app"]

del jinja2, starlette
