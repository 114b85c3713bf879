"""A client of any OpenAI-compatible server: where it is, which models it has, what its errors say."""

from __future__ import annotations

import httpx
import msgspec

from app.printable import printable
from engine.errors import PagewellError


class NoServer(PagewellError):
    """Something answers at an address, but it serves no models."""


def client_of(url: str, api_key: str | None) -> httpx.AsyncClient:
    """A client for a Pagewell or any OpenAI-compatible server; waits long for answers, briefly for a connection."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        return httpx.AsyncClient(base_url=url, headers=headers, timeout=httpx.Timeout(600, connect=3), trust_env=False)
    except httpx.InvalidURL as error:
        raise PagewellError(f"{url} is no address of a server: {error}.", "It should look like http://127.0.0.1:8000.") from error


async def served_names(url: str, api_key: str | None) -> list[str] | None:
    """Models that a server offers; None when nothing answers there.

    Raises NoServer when what answers is something else, PagewellError when a server answers with an error.
    """
    async with client_of(url, api_key) as client:
        try:
            response = await client.get("/v1/models")
        except httpx.TransportError:
            return None
        except httpx.HTTPError as error:
            raise NoServer(f"What answers at {url} serves no models: {error}", "Check --url.") from error
    if response.is_error and response.status_code != 404 and _openai_error(response) is not None:
        raise PagewellError(
            f"The server at {url} answers {response.status_code}: {error_text(response)}", "Check --url and --api-key."
        )
    try:
        return [model.id for model in msgspec.json.decode(response.content, type=_ModelList).data]
    except msgspec.MsgspecError as error:
        reason = f"GET /v1/models gives status {response.status_code} and no list of models."
        raise NoServer(f"What answers at {url} serves no models: {reason}", "Check --url.") from error


class ErrorMessage(msgspec.Struct):
    message: str


class _ErrorBody(msgspec.Struct):
    error: ErrorMessage


class _Model(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: tuple[_Model, ...]


def _openai_error(response: httpx.Response) -> str | None:
    """The message of an error body in OpenAI's shape."""
    try:
        return msgspec.json.decode(response.content, type=_ErrorBody).error.message
    except msgspec.MsgspecError:
        return None


def error_text(response: httpx.Response) -> str:
    return printable(_openai_error(response) or response.text[:200] or response.reason_phrase)
