"""The framing of an answer: chunked or not, cut by the network anywhere, each event with the time when it was whole."""

from __future__ import annotations

import pytest

from app.bench.wire import BadReply, Endpoint, Reply

EVENTS = b': hello\n\ndata: {"a": 1}\n\nevent: x\r\ndata: first\r\ndata:second\r\n\r\ndata: [DONE]\n\n'


def chunked(data: bytes, size: int) -> bytes:
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    return b"".join(b"%x;x=y\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize("chunk_size", [1, 3, 1000])
@pytest.mark.parametrize("read_size", [1, 2, 7, 10_000])
def test_events_survive_any_cut(chunk_size: int, read_size: int) -> None:
    body = chunked(EVENTS, chunk_size)
    reads = [(float(i), body[i : i + read_size]) for i in range(0, len(body), read_size)]
    reply = Reply(200, {"transfer-encoding": "chunked"}, reads)
    assert [data for _, data in reply.events()] == ['{"a": 1}', "first\nsecond", "[DONE]"]
    plain = Reply(200, {}, [(float(i), EVENTS[i : i + read_size]) for i in range(0, len(EVENTS), read_size)])
    assert [data for _, data in plain.events()] == ['{"a": 1}', "first\nsecond", "[DONE]"]
    assert reply.text().encode() == plain.text().encode() == EVENTS


def test_an_event_has_the_time_at_which_it_was_whole() -> None:
    reply = Reply(200, {}, [(1.0, b"data: a\n\ndata: b"), (2.0, b"\n"), (3.0, b"\ndata: c\n\ndata: d\n\n")])
    assert list(reply.events()) == [(1.0, "a"), (3.0, "b"), (3.0, "c"), (3.0, "d")]


def test_broken_chunks_are_named() -> None:
    with pytest.raises(BadReply, match="without a length"):
        list(Reply(200, {"transfer-encoding": "chunked"}, [(1.0, b"hello\r\n")]).events())


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://127.0.0.1:8000", ("127.0.0.1", 8000, False, "")),
        ("https://api.example.com", ("api.example.com", 443, True, "")),
        ("http://host/openai/", ("host", 80, False, "/openai")),
        ("http://[::1]:9", ("::1", 9, False, "")),
    ],
)
def test_where_a_server_is(url: str, place: tuple[str, int, bool, str]) -> None:
    assert Endpoint(url).place() == place
