"""Guard: the checks that every HTTP request passes before anything else sees it.

It wraps the whole application: Litestar runs middleware per route, so an unknown path or a wrong method would pass it
by. Order: Host, Origin, preflight, key, kind of body.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass

import anyio
import msgspec
from litestar.types import ASGIApp, Message, Receive, Scope, Send
from litestar.utils import normalize_path

from app.errors import ApiError
from app.origins import Hosts, Origins
from app.settings import Settings

MAX_BODY_BYTES = 64 << 20

API_PATHS = (
    "/v1",
    "/chat/completions",
    "/completions",
    "/models",
    "/tokenize",
    "/detokenize",
    "/api",
    "/health",
    "/metrics",
    "/schema",
)
"""Programs call these, perhaps from pages of other origins. Everything else belongs to the chat page."""
_PUBLIC_PATHS = frozenset({"/health", "/health/ready"})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_ALLOW_METHODS = b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
_ALLOW_HEADERS = frozenset({"authorization", "content-type", "accept", "x-api-key", "api-key", "openai-beta", "x-request-id"})
_ALLOW_HEADER_PREFIXES = ("anthropic-", "openai-", "x-stainless-")
_EXPOSE_HEADERS = b"x-request-id, x-should-retry, retry-after"
_NOSNIFF = (b"x-content-type-options", b"nosniff")

_REMEDY_API = "Its setting cors_origins names those that may."
_REMEDY_PAGE = "Behind a proxy, its setting allowed_hosts must hold the name that browsers use."

Headers = list[tuple[bytes, bytes]]


@dataclass(slots=True, frozen=True)
class _Caller:
    """What the headers say about where a request comes from."""

    origin: str
    is_allowed: bool
    """Same origin, a configured one, or no browser at all."""


class Guard:
    """ASGI middleware around the application."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._key = settings.serving.api_key
        self._hosts = Hosts(settings.serving)
        self._origins = Origins(settings.serving.cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        path, method = normalize_path(scope["path"]), scope["method"]
        is_api = _is_api(path)
        host = headers.get("host", "")
        if not self._hosts.allow(host):
            await _refuse(send, _wrong_host(host), [])
            return
        caller = self._caller(headers, host, is_api=is_api)
        cors = _cors(caller) if is_api else []
        if method == "OPTIONS":
            await _empty(send, 204, cors + _preflight(caller, headers) if cors else [])
            return
        error = self._error(path, method, headers, caller, is_api=is_api)
        if error is not None:
            await _refuse(send, error, cors)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *cors, _NOSNIFF]
            await send(message)

        if method == "HEAD":
            await _head(self._app, scope, receive, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)

    def _caller(self, headers: Mapping[str, str], host: str, *, is_api: bool) -> _Caller:
        origin = headers.get("origin", "")
        if not origin:
            return _Caller("", headers.get("sec-fetch-site", "none") in ("none", "same-origin"))
        return _Caller(origin, self._hosts.own_page(origin, host) or (is_api and self._origins.allow(origin)))

    def _error(self, path: str, method: str, headers: Mapping[str, str], caller: _Caller, *, is_api: bool) -> ApiError | None:
        if method not in _SAFE_METHODS and not caller.is_allowed:
            return ApiError(
                403,
                f"Pages of {caller.origin or 'other sites'} may not call this server. {_REMEDY_API if is_api else _REMEDY_PAGE}",
                "permission_error",
                code="origin_not_allowed",
            )
        if self._key is not None and path not in _PUBLIC_PATHS and not presents_key(self._key, headers):
            challenge = "Bearer" if is_api else 'Basic realm="Pagewell (any name; the API key is the password)", charset="UTF-8"'
            return ApiError(
                401,
                "Incorrect API key provided. Send the key this server was started with as a bearer token.",
                "authentication_error",
                code="invalid_api_key",
                headers={"www-authenticate": challenge},
            )
        if is_api and method not in _SAFE_METHODS and _has_body(headers) and not _is_json(headers.get("content-type", "")):
            return ApiError(415, "The body must be JSON, sent with the header Content-Type: application/json.", code="not_json")
        return None


def presents_key(key: str, headers: Mapping[str, str]) -> bool:
    """Whether the headers (lower-case names) carry `key`: as bearer token, x-api-key, api-key, or as Basic password.

    Browsers can send the last one for the chat page.
    """
    given = [headers.get("x-api-key", ""), headers.get("api-key", "")]
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        given.append(credentials.strip())
    elif scheme.lower() == "basic":
        with contextlib.suppress(binascii.Error, UnicodeDecodeError):
            given.append(base64.b64decode(credentials, validate=True).decode().partition(":")[2])
    # Every candidate is hashed and compared, so that neither length nor content shows in the time taken.
    return any([hmac.compare_digest(_digest(candidate), _digest(key)) for candidate in given])


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _is_api(path: str) -> bool:
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in API_PATHS)


def _has_body(headers: Mapping[str, str]) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _wrong_host(host: str) -> ApiError:
    return ApiError(
        403,
        f"This server does not answer to the name {host!r}. Its setting allowed_hosts names those it does.",
        "permission_error",
        code="host_not_allowed",
    )


def _cors(caller: _Caller) -> Headers:
    if not caller.origin or not caller.is_allowed:
        return [(b"vary", b"Origin")]
    return [
        (b"access-control-allow-origin", caller.origin.encode("latin-1")),
        (b"access-control-expose-headers", _EXPOSE_HEADERS),
        (b"vary", b"Origin"),
    ]


def _preflight(caller: _Caller, headers: Mapping[str, str]) -> Headers:
    if not caller.origin or not caller.is_allowed:
        return []
    asked = [name.strip().lower() for name in headers.get("access-control-request-headers", "").split(",")]
    granted = sorted(n for n in asked if n in _ALLOW_HEADERS or n.startswith(_ALLOW_HEADER_PREFIXES))
    answer = [
        (b"access-control-allow-methods", _ALLOW_METHODS),
        (b"access-control-allow-headers", ", ".join(granted or sorted(_ALLOW_HEADERS)).encode("latin-1")),
        (b"access-control-max-age", b"600"),
    ]
    if headers.get("access-control-request-private-network") == "true":
        answer.append((b"access-control-allow-private-network", b"true"))
    return answer


async def _empty(send: Send, status: int, headers: Headers) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _refuse(send: Send, error: ApiError, cors: Headers) -> None:
    body = msgspec.json.encode(error.body)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *((name.encode(), value.encode()) for name, value in error.headers.items()),
        *cors,
        _NOSNIFF,
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _head(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """The headers of GET, and nothing after them. A body without a known length may be endless, so it is not computed."""
    with anyio.CancelScope() as answering:

        async def send_headers(message: Message) -> None:
            if message["type"] != "http.response.start":
                return
            await send(message)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            if b"content-length" not in {name.lower() for name, _ in message["headers"]}:
                answering.cancel()

        await app({**scope, "method": "GET"}, receive, send_headers)  # type: ignore[typeddict-item]
