"""What all pages share: their headers, and errors as the browser or htmx takes them."""

from __future__ import annotations

import logging
from typing import Any

from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException

from app.errors import ModelInUse, UnknownModel
from engine.errors import PagewellError
from ui.render import render

log = logging.getLogger(__name__)

POLICY = "; ".join(
    (
        "default-src 'self'",
        "img-src 'self' data:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
"""No inline script or style, no eval, nothing from elsewhere: what slips through the sanitiser still cannot act."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    # A page that comes back from the browser's cache would show answers as they were.
    "Cache-Control": "no-store",
}
_STATUS = {UnknownModel: 404, ModelInUse: 409}
"""Of errors that do not say it themselves, in `status`; 400 for the others."""


def html(body: str, **headers: str) -> Response[str]:
    return Response(body, media_type=MediaType.HTML, headers=HEADERS | headers)


def describe(request: Request[Any, Any, Any], error: Exception) -> Response[str]:
    """A whole page for the browser, a sentence for htmx, which the page shows as a notice."""
    if isinstance(error, PagewellError):
        status = getattr(error, "status", _STATUS.get(type(error), 400))
        message, hint = error.message, error.hint
    elif isinstance(error, HTTPException):
        status, message, hint = error.status_code, error.detail, ""
    else:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        status, message, hint = 500, "The server made a mistake; its log says more.", ""
    if "hx-request" in request.headers:
        return Response(f"{message} {hint}".strip(), media_type=MediaType.TEXT, status_code=status, headers=HEADERS)
    body = render("error.html", message=message, hint=hint)
    return Response(body, media_type=MediaType.HTML, status_code=status, headers=HEADERS)
