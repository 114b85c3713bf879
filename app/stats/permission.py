"""Who may use control actions: those that touch other people's requests or the model."""

from __future__ import annotations

import hmac
from typing import Any

from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException, PermissionDeniedException

from app.settings import Settings


def check(settings: Settings, connection: ASGIConnection[Any, Any, Any, Any]) -> None:
    """Raise unless the caller may act under the server's permission_mode."""
    mode = settings.orchestrator.permission_mode
    if mode == "readonly":
        raise PermissionDeniedException("This server takes no control actions: its permission_mode is readonly.")
    if mode == "key" and not _has_key(settings, connection):
        raise NotAuthorizedException("Control actions need the API key: this server's permission_mode is key.")


def _has_key(settings: Settings, connection: ASGIConnection[Any, Any, Any, Any]) -> bool:
    headers = connection.headers
    given = headers.get("authorization", "").removeprefix("Bearer ") or headers.get("x-api-key", "") or headers.get("api-key", "")
    key = settings.serving.api_key
    return key is not None and hmac.compare_digest(given.encode(), key.encode())
