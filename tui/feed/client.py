"""The connection to a server's stats feed: connects, follows, reconnects by itself, and carries actions back."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import httpx
import msgspec
from httpx_sse import SSEError, aconnect_sse

from tui.feed.state import FeedState
from tui.text import lines

_BACK_OFF_S = (0.5, 1.0, 2.0, 4.0, 5.0)
_SILENCE_S = 10.0
"""A feed that says nothing for so long has lost its server."""


@dataclass(frozen=True, slots=True)
class Connection:
    """How the line to the server stands."""

    state: str
    """connecting, live, absent (nobody answers), refused (wants a key), foreign (no stats feed there) or lost."""
    detail: str = ""
    n_tries: int = 0
    retry_s: float = 0.0
    """Until the next try."""


class FeedError(Exception):
    """A request to the server failed; the text is for the person."""


class FeedClient:
    """Keeps `state` as new as the server's frames, and `connection` true. Raises FeedError for a url that is none."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.url = _checked(url)
        self.state = FeedState()
        self.connection = Connection("connecting")
        self._sleep = sleep
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(_SILENCE_S, connect=5.0),
            transport=transport,
            # A proxy from the environment cannot reach this machine's own loopback.
            trust_env=not is_loopback(url),
        )

    async def run(self) -> None:
        """Follow the feed until cancelled."""
        n_tries = 0
        while True:
            was_live = False
            try:
                async for _ in self._follow():
                    if not was_live:
                        was_live, n_tries = True, 0
                        self.connection = Connection("live")
                problem = Connection("lost", "the server closed the feed")
            except (httpx.HTTPError, SSEError, msgspec.MsgspecError, UnicodeDecodeError) as error:
                problem = _diagnose(error, was_live)
            retry_s = _BACK_OFF_S[min(n_tries, len(_BACK_OFF_S) - 1)]
            n_tries += 1
            self.connection = Connection(problem.state, problem.detail, n_tries, retry_s)
            await self._sleep(retry_s)

    async def _follow(self) -> AsyncIterator[None]:
        async with aconnect_sse(self._http, "GET", "/api/stats/stream") as source:
            source.response.raise_for_status()
            async with contextlib.aclosing(source.aiter_sse()) as events:
                async for event in events:
                    if self.state.apply(event.event, event.data):
                        yield

    async def snapshot(self) -> bytes:
        """One frame as the server's JSON. Raises FeedError."""
        return (await self._request("GET", "/api/stats")).content

    async def abort(self, uid: int) -> None:
        """End a request. Raises FeedError with the server's reason."""
        await self._request("POST", f"/api/requests/{uid}/abort")

    async def close(self) -> None:
        await self._http.aclose()

    async def _request(self, method: str, path: str) -> httpx.Response:
        try:
            response = await self._http.request(method, path)
            response.raise_for_status()
        except httpx.HTTPStatusError as error:
            raise FeedError(_server_message(error.response)) from error
        except httpx.HTTPError as error:
            hint = "Start a server with `pagewell serve`, or name another one with --url."
            raise FeedError(f"Nothing answers at {self.url} ({_reason(error)}).\n{hint}") from error
        return response


def _checked(url: str) -> str:
    try:
        parsed = httpx.URL(url)
        valid = parsed.scheme in ("http", "https") and parsed.host and (parsed.port or 1) < 1 << 16
    except httpx.InvalidURL:
        valid = False
    if not valid:
        raise FeedError(f"{url!r} is no address of a server; it should look like http://127.0.0.1:8000.")
    return url.rstrip("/")


def is_loopback(url: str) -> bool:
    """Whether the URL's host is this machine."""
    host = httpx.URL(url).host
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _diagnose(error: Exception, was_live: bool) -> Connection:
    if isinstance(error, httpx.HTTPStatusError):
        status = error.response.status_code
        if status in (401, 403):
            return Connection("refused", f"status {status}")
        return Connection("absent" if status == 503 else "foreign", f"status {status}")
    if isinstance(error, (SSEError, msgspec.MsgspecError, UnicodeDecodeError)):
        return Connection("foreign", "what it sends is no stats feed")
    return Connection("lost" if was_live else "absent", _reason(error))


def _reason(error: Exception) -> str:
    match error:
        case httpx.ConnectTimeout():
            return "no answer in time"
        case httpx.TimeoutException():
            return f"silent for {_SILENCE_S:.0f} s"
        case httpx.ConnectError():
            return "connection refused" if "refused" in str(error).lower() or "attempts failed" in str(error) else str(error)
        case httpx.RemoteProtocolError() | httpx.ReadError():
            return "connection closed"
        case _:
            return str(error) or type(error).__name__


def _server_message(response: httpx.Response) -> str:
    """The text of an error body (OpenAI's shape) without control characters, else the status."""
    try:
        body = msgspec.json.decode(response.content)
        message = lines(str(body["error"]["message"] if "error" in body else body["detail"]))
    except (msgspec.MsgspecError, KeyError, TypeError):
        message = f"The server answered with status {response.status_code}."
    if response.status_code == 401:
        return f"{message} Pass --api-key, or set PAGEWELL_API_KEY for the configured server."
    return message
