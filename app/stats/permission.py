"""Who may use control actions: those that touch other people's requests or the model."""

from __future__ import annotations

from typing import Any

from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException, PermissionDeniedException

from app.security import presents_key
from app.settings import Settings


def check(settings: Settings, connection: ASGIConnection[Any, Any, Any, Any]) -> None:
    """Raise unless the caller may act under the server's permission_mode."""
    mode = settings.orchestrator.permission_mode
    if mode == "readonly":
        raise PermissionDeniedException("This server takes no control actions: its permission_mode is readonly.")
    key = settings.serving.api_key
    if mode == "key" and not (key is not None and presents_key(key, connection.headers)):
        raise NotAuthorizedException("Control actions need the API key: this server's permission_mode is key.")
