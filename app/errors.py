"""Errors as clients see them: one OpenAI-shaped body for each, on every route, before or after the headers."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import msgspec
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException, NotFoundException, ValidationException

from engine.errors import EngineDead, InvalidRequest, PagewellError, PromptTooLong, QueueFull, TemplateError

log = logging.getLogger(__name__)

QUEUE_RETRY_S = 2


class ModelLoading(PagewellError):
    """The model is on its way into memory; the client should come back in `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ModelFailed(PagewellError):
    """The model could not be loaded; the next load is tried in `retry_after_s` seconds at the earliest. None: that it would fail
    again."""

    def __init__(self, message: str, hint: str = "", retry_after_s: int | None = None) -> None:
        super().__init__(message, hint)
        self.retry_after_s = retry_after_s


class GenerationFailed(PagewellError):
    """The engine gave up on a request that it had accepted."""


class UnknownModel(PagewellError):
    """A request asks for a model that this server does not serve."""


class ModelInUse(PagewellError):
    """A model is in memory or at work, so that what was asked for it cannot be done now."""


class ClientGone(PagewellError):
    """The client closed its connection before the answer; nobody reads what follows."""


class NotAvailable(InvalidRequest):
    """A request demands something that would be silently ignored if it were accepted; `param` names it."""

    def __init__(self, param: str, what: str = "") -> None:
        super().__init__(param, f"`{param}` is not available yet{': ' + what if what else ''}. Leave it out.")


class ErrorFields(msgspec.Struct):
    """OpenAI's error object. `code` is a text or null, never a number."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    error: ErrorFields


@dataclass(slots=True, frozen=True)
class ApiError:
    """One error on the wire: status, the OpenAI object, and headers."""

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> ErrorBody:
        return ErrorBody(ErrorFields(self.message, self.type, self.param or None, self.code))


_NO_RETRY = {"x-should-retry": "false"}
_CODES = {401: "invalid_api_key", 404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}


def describe(error: BaseException, *, details: bool = False) -> ApiError:
    """What the client learns about an error. `details` adds the text of unexpected ones (development)."""
    if isinstance(error, PromptTooLong):
        return ApiError(400, error.message, param="messages", code="context_length_exceeded")
    if isinstance(error, TemplateError):
        return ApiError(400, _sentence(error), param=error.param or "messages", headers=_NO_RETRY)
    if isinstance(error, InvalidRequest):
        return ApiError(400, _sentence(error), param=error.param)
    if isinstance(error, UnknownModel):
        return ApiError(404, _sentence(error), param="model", code="model_not_found")
    if isinstance(error, ModelInUse):
        return ApiError(409, _sentence(error), param="model", code="model_in_use")
    if isinstance(error, QueueFull):
        return ApiError(503, _sentence(error), "overloaded_error", code="queue_full", headers={"retry-after": str(QUEUE_RETRY_S)})
    if isinstance(error, ModelLoading):
        headers = {"retry-after": str(error.retry_after_s)}
        return ApiError(503, _sentence(error), "unavailable_error", code="model_loading", headers=headers)
    if isinstance(error, ModelFailed):
        headers = _NO_RETRY if error.retry_after_s is None else {"retry-after": str(error.retry_after_s)}
        return ApiError(503, _sentence(error), "unavailable_error", code="model_failed", headers=headers)
    if isinstance(error, EngineDead):
        headers = {"retry-after": str(QUEUE_RETRY_S)}
        return ApiError(503, _sentence(error), "unavailable_error", code="engine_dead", headers=headers)
    if isinstance(error, GenerationFailed):
        return ApiError(500, _sentence(error), "server_error", code="generation_failed", headers=_NO_RETRY)
    if isinstance(error, ClientGone):
        return ApiError(499, _sentence(error), code="client_closed_request")
    if isinstance(error, PagewellError):
        return ApiError(400, _sentence(error), headers=_NO_RETRY)
    if isinstance(error, HTTPException):
        return _from_litestar(error)
    return ApiError(500, str(error) if details else "The server made a mistake; its log says more.", "server_error")


def _sentence(error: PagewellError) -> str:
    return f"{error.message} {error.hint}".strip()


def _from_litestar(error: HTTPException) -> ApiError:
    param = None
    message = error.detail
    if isinstance(error, NotFoundException) and message.startswith("no file or directory match"):
        message = "There is no such file."  # Litestar's words name folders of this machine
    if isinstance(error, ValidationException) and isinstance(error.extra, list) and error.extra:
        first = error.extra[0]
        param = first.get("key")
        if param == "data":  # the handlers' name for the body
            return ApiError(400, "The request needs a JSON body.")
        message = f"{param}: {first.get('message')}" if param else str(first.get("message"))
    kind = "server_error" if error.status_code >= 500 else "invalid_request_error"
    headers = dict(error.headers or {})
    return ApiError(error.status_code, message, kind, param, _CODES.get(error.status_code), headers)


def respond(request: Request[Any, Any, Any], error: Exception) -> Response[ErrorBody]:
    """The application's exception handler."""
    described = describe(error, details=request.app.debug)
    if described.status >= 500 and not isinstance(error, PagewellError):
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return Response(described.body, status_code=described.status, headers=described.headers, media_type=MediaType.JSON)
