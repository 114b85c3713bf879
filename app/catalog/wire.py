"""Requests to the hub. Every wait for the network has an end, and whoever waits may leave at any moment of it.

A file comes by range requests into a part that outlives the process, so that what broke off goes on where it was.
huggingface_hub has the addresses, the token, proxies and errors; its own download keeps no parts, and one that runs in its
native library (hf_xet) can be neither stopped nor watched.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from engine.errors import ModelLoadError

log = logging.getLogger(__name__)

T = TypeVar("T")

Check = Callable[[], None]
"""Called several times a second, on the caller's thread; what it raises ends the work at once."""

RANGE_BYTES = 1 << 30
"""Most of one request: networks of servers refuse to send files of 50 GB and more in one piece, and an address that the hub
signed holds for its first minutes only."""
MOST_TRIES = 5
"""In a row, without a byte that is new."""
_REST_S = 1.0
"""Before the next try; twice as long with each that brought nothing."""
_LOOK_S = 0.1
_PASSING = (408, 425, 429, 500, 502, 503, 504)
"""Answers after which it is worth trying again."""
_MOST_JSON = 64 << 20


def go_on() -> None:
    """The check of who does not leave."""


def get_json(url: str, params: dict[str, Any], check: Check) -> Any:
    """Raises the errors of huggingface_hub."""
    from huggingface_hub.errors import HTTPError

    found = bytearray()

    def take(piece: bytes) -> bool:
        found.extend(piece)
        return len(found) <= _MOST_JSON

    _run(_stream(url, take, params=params), check)
    try:
        return json.loads(found)
    except ValueError as error:
        raise HTTPError(f"{url} sent no JSON: {error}") from error


def fetch(url: str, start: int, n_bytes: int, check: Check) -> bytes:
    """Bytes of a file from `start` on; no more than these are read, also from a server that sends the whole. Raises the errors
    of huggingface_hub."""
    found = bytearray()

    def take(piece: bytes) -> bool:
        found.extend(piece)
        return len(found) < n_bytes

    if n_bytes > 0:
        _run(_stream(url, take, start=start, end=start + n_bytes), check)
    return bytes(found[:n_bytes])


def receive(url: str, part: Path, size: int, got: Callable[[int], None], check: Check) -> None:
    """Fetch what `part` has not of a file of `size` bytes. It stays, whatever happens.

    got: told of each piece's bytes; what it raises ends the transfer. Raises the errors of huggingface_hub once a few tries in a
    row brought nothing, and ModelLoadError where the server has a file of another size.
    """
    _run(_receive(url, part, size, got), check)


async def _receive(url: str, part: Path, size: int, got: Callable[[int], None]) -> None:
    from huggingface_hub.errors import HfHubHTTPError, HTTPError

    with part.open("ab", buffering=0) as file:
        there = file.tell()
        if there > size:
            file.truncate(0)
            there = 0

        def take(piece: bytes) -> bool:
            nonlocal there
            piece = piece[: size - there]
            file.write(piece)
            there += len(piece)
            got(len(piece))
            return there < size

        n_tries = 0
        while there < size:
            before, end = there, min(size, there + RANGE_BYTES)
            problem: HTTPError | None = None
            try:
                await _stream(url, take, start=there, end=end, size=size)
            except HTTPError as error:
                if isinstance(error, HfHubHTTPError) and error.response.status_code not in _PASSING:
                    raise
                problem = error
            if there >= end:
                continue
            problem = problem or HTTPError("it sent less than was asked for")
            n_tries = 0 if there > before else n_tries + 1
            if n_tries >= MOST_TRIES:
                raise problem
            log.info("%s broke off after %d of %d bytes: %s", part.name, there, size, str(problem) or type(problem).__name__)
            await asyncio.sleep(_REST_S * 2**n_tries)


async def _stream(
    url: str,
    take: Callable[[bytes], bool],
    *,
    start: int = 0,
    end: int | None = None,
    size: int | None = None,
    params: dict[str, Any] | None = None,
) -> None:
    """Give `take` the bytes from `start` on, until it wants no more. end: behind the last byte to ask for, None: all; a server
    that knows no ranges sends the rest too. size: of the whole file, where that is known."""
    from huggingface_hub import constants, get_async_session, get_token
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

    headers = build_hf_headers(token=get_token()) | {"Accept-Encoding": "identity"}  # a range is one of what is sent
    if end is not None:
        headers["Range"] = f"bytes={start}-{end - 1}"
    quiet = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
    async with (
        get_async_session() as client,
        client.stream("GET", url, headers=headers, params=params, timeout=(quiet, quiet, quiet, quiet)) as response,
    ):
        hf_raise_for_status(response)
        skip, total = start, response.headers.get("Content-Length")
        if response.status_code == 206:
            skip, total = 0, _total(response.headers.get("Content-Range", ""), start, url)
        if size is not None and total not in (None, "*", str(size)) and "Content-Encoding" not in response.headers:
            raise ModelLoadError(f"{url} has {total} bytes, not the {size} that the hub says: it is damaged.", "Try it later.")
        async for piece in response.aiter_bytes():
            wanted, skip = piece[skip:], max(0, skip - len(piece))
            if wanted and not take(wanted):
                return


def _total(content_range: str, start: int, url: str) -> str:
    """Bytes of the whole file, or '*'."""
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", content_range)
    if match is None or int(match[1]) != start:
        raise ModelLoadError(f"{url} was asked for its bytes from {start} on, and sent {content_range!r}.", "Try it later.")
    return match[2]


def _run(work: Coroutine[Any, Any, T], check: Check) -> T:
    async def watched() -> T:
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                check()
                await asyncio.wait({task}, timeout=_LOOK_S)
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return asyncio.run(watched())
