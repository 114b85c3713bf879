"""`--once`: a snapshot for eyes, and one for scripts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec
import pytest

from tests.tui.frames import frame
from tui.app import run
from tui.feed.model import Model


@pytest.fixture
def answer() -> dict[str, object]:
    return {"status": 200, "body": msgspec.json.encode(frame())}


@pytest.fixture
def url(answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answer["status"])
            self.end_headers()
            self.wfile.write(answer["body"])

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_json_is_the_servers_own(url, capsys):
    assert run(url, once=True, as_json=True) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["totals"]["n_running"] == 3 and shown["requests"][0]["id"] == "chatcmpl-done"


def test_text_has_the_figures_and_the_requests(url, capsys):
    assert run(url, once=True) == 0
    shown = capsys.readouterr().out
    figures = ("SmolLM2-135M-Instruct", "generation 46.8 tok/s", "TTFT p50 0.42 s", "80 used (12 shared)")
    assert all(part in shown for part in (*figures, "agent-one", "Preempted"))


def test_a_model_that_loads_says_how_far_it_is(url, answer, capsys):
    answer["body"] = msgspec.json.encode(frame(model=Model(state="loading", name="big", progress=0.5)))
    assert run(url, once=True) == 0
    assert "50% loaded" in capsys.readouterr().out


def test_no_server_is_an_exit_status_and_a_sentence(capsys):
    assert run("http://127.0.0.1:1", once=True) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and "Nothing answers at http://127.0.0.1:1" in captured.err and "pagewell serve" in captured.err


def test_another_program_is_an_exit_status_and_a_sentence(url, answer, capsys):
    answer["body"] = b"<html>"
    assert run(url, once=True) == 1
    assert "no stats feed" in capsys.readouterr().err


def test_a_missing_key_is_an_exit_status_and_a_sentence(url, answer, capsys):
    answer |= {"status": 401, "body": b'{"error":{"message":"Incorrect API key provided."}}'}
    assert run(url, once=True, as_json=True) == 1
    assert "--api-key" in capsys.readouterr().err


def test_strangers_text_cannot_reach_the_terminal_as_an_escape_sequence(url, answer, capsys):
    evil = "\x1b]52;c;ZXZpbA==\x07\x9b2J[/bold]"
    for model in (
        Model(state="ready", name=f"n{evil}", quantization=f"q{evil}", dtype=f"d{evil}"),
        Model(state=f"failed{evil}", name=evil, error=f"first{evil}\nsecond"),
    ):
        answer["body"] = msgspec.json.encode(frame(model=model))
        assert run(url, once=True) == 0
        shown = capsys.readouterr().out
        assert not {character for character in shown if not character.isprintable()} - {"\n"}
    assert "second" in shown.splitlines()[-1]
    assert run(url, once=True, as_json=True) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\x9b" not in shown
    assert json.loads(shown)["model"]["error"] == f"first{evil}\nsecond"
    answer |= {"status": 500, "body": msgspec.json.encode({"error": {"message": f"broken{evil}"}})}
    assert run(url, once=True) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("broken ") and shown.strip().isprintable()
