"""`pagewell chat` and what answers at the address: servers that break off, programs that are none, and nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from app import client
from app import settings as app_settings
from app.catalog.disk import LocalModel
from app.client import NoServer, served_names
from app.commands.answering import LocalAnswerer, Sampling, ServerAnswerer
from app.commands.chat import Conversation, _answerer
from app.commands.params import address_of
from engine.errors import PagewellError

HTML = b"<html><body>Directory listing</body></html>"
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def whole(status: int, body: bytes, content_type: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status} Reason\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return head.encode() + body


def event(value: object) -> bytes:
    data = f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunk(text: str) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


@asynccontextmanager
async def program(answer: bytes) -> AsyncIterator[str]:
    """Something that gives the same bytes to whatever is asked, and closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((line.split(b":")[1] for line in head.lower().splitlines() if line.startswith(b"content-length")), b"0")
        await reader.readexactly(int(length))
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def names(answer: bytes) -> list[str] | None:
    async with program(answer) as url:
        return await served_names(url, None)


async def test_the_names_that_a_server_offers() -> None:
    assert await names(whole(200, b'{"object": "list", "data": [{"id": "a", "x": 1}, {"id": "b"}]}')) == ["a", "b"]
    assert await served_names("http://127.0.0.1:9", None) is None


@pytest.mark.parametrize(
    "answer",
    [
        whole(200, HTML, "text/html"),
        whole(404, HTML, "text/html"),
        whole(404, b'{"detail": "Not Found"}'),
        whole(404, b'{"error": {"message": "no such route"}}'),
        whole(200, b'{"data": "none"}'),
        whole(302, b""),
        whole(200, b"no gzip").replace(b"connection", b"content-encoding: gzip\r\nconnection"),
    ],
)
async def test_another_program_is_known_as_such(answer: bytes) -> None:
    with pytest.raises(NoServer, match="serves no models"):
        await names(answer)


async def test_a_server_that_wants_a_key_says_so_without_control_characters() -> None:
    with pytest.raises(PagewellError, match="answers 401: Wrong key") as caught:
        await names(whole(401, b'{"error": {"message": "Wrong \\u001bkey"}}'))
    assert not isinstance(caught.value, NoServer)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (CHUNKED + event(chunk("Hel")), "^The server at .* went away in mid-answer"),
        (whole(200, HTML, "text/html"), "failed"),
        (CHUNKED + event(chunk("Hel")) + event("{no json"), "no chat completion"),
        (CHUNKED + event(chunk("Hel")) + event({"choices": [{"delta": ["x"]}]}), "no chat completion"),
        (CHUNKED + event(chunk("Hel")) + event({"error": {"message": "broke\u001b"}}), "^broke$"),
        (whole(500, HTML, "text/html"), "Directory listing"),
    ],
)
def test_a_failing_server_ends_the_answer_but_not_the_conversation(
    answer: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with asyncio.Runner() as runner:

        def ask(bytes_: bytes) -> None:
            serving = program(bytes_)
            url = runner.run(serving.__aenter__())
            server = ServerAnswerer(url, None, "m")
            talk._answerer = server
            try:
                talk.ask("two")
            finally:
                runner.run(server.close())
                runner.run(serving.__aexit__(None, None, None))

        talk = Conversation(runner, None, Sampling(), system="")
        said_before = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "1"}]
        talk.messages = list(said_before)
        with pytest.raises(PagewellError, match=said):
            ask(answer)
        assert talk.messages == said_before
        ask(CHUNKED + event(chunk("2")) + event({"choices": []}) + event("[DONE]") + b"0\r\n\r\n")
        assert talk.messages[-1]["content"] == "2"


@contextmanager
def answerer_at(monkeypatch: pytest.MonkeyPatch, found: Callable[..., Awaitable[object]], **options: bool) -> Iterator[object]:
    """What `pagewell chat` would talk to; models are not loaded but stand as the text 'loaded here'."""

    class Loaded:
        async def close(self) -> None:
            """Nothing is held."""

    async def load(*_: object) -> Loaded:
        return Loaded()

    monkeypatch.setattr(client, "served_names", found)
    monkeypatch.setattr(LocalAnswerer, "load", load)
    monkeypatch.setattr("app.catalog.library.locate", lambda name, _: LocalModel(name, Path(name), "gguf", 0, False))
    with asyncio.Runner() as runner, _answerer(runner, app_settings.make(), ("http://x", None), None, **options) as answerer:
        yield answerer


def test_a_stranger_on_the_port_keeps_nobody_from_chatting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stranger(*_: object) -> None:
        raise NoServer("What answers at http://x serves no models")

    with answerer_at(monkeypatch, stranger, must_be_server=False) as answerer:
        assert type(answerer).__name__ == "Loaded"
    with pytest.raises(NoServer), answerer_at(monkeypatch, stranger, must_be_server=True):
        pass


async def test_an_address_that_is_none_is_told() -> None:
    with pytest.raises(PagewellError, match="no address of a server"):
        await served_names("http://127.0.0.1:port", None)


@pytest.mark.parametrize(
    ("url", "key"),
    [
        (None, "secret"),
        ("http://127.0.0.1:8123", "secret"),
        ("http://localhost:8123/v1/", "secret"),
        ("http://127.0.0.1:8124", None),
        ("https://127.0.0.1:8123", None),
        ("http://example.com:8123", None),
        ("http://127.0.0.1:8123@example.com", None),
        ("http://127.0.0.1:port", None),
    ],
)
def test_the_configured_key_goes_to_the_configured_address_only(url: str | None, key: str | None) -> None:
    settings = app_settings.make({"port": 8123, "api_key": "secret"})
    assert address_of(settings, url, None)[1] == key
    assert address_of(settings, url, "given")[1] == "given"
