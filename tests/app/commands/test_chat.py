"""A conversation in the terminal, with scripted answers: what is kept, what is dropped, what an interruption leaves."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator

import pytest

from app.commands.answering import Message, Sampling, Tally
from app.commands.chat import Conversation
from engine.errors import PagewellError


class Script:
    """Answers with the number of messages it was given; can fail, or be interrupted after its first piece."""

    name = "script"

    def __init__(self) -> None:
        self.tally: Tally | None = Tally(1, 0, 2, 0.1, 0.3)
        self.seen: list[list[Message]] = []
        self.closed_early = 0
        self.interrupt = False
        self.fail = False

    async def stream(self, messages: list[Message], sampling: Sampling) -> AsyncIterator[str]:
        self.seen.append(list(messages))
        if self.fail:
            raise PagewellError("no luck")
        try:
            yield f"answer {len(self.seen)} "
            if self.interrupt:
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(30)
            yield f"to {len(messages)}"
        except BaseException:
            self.closed_early += 1
            raise

    async def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def talk(script: Script) -> Iterator[Conversation]:
    with asyncio.Runner() as runner:
        yield Conversation(runner, script, Sampling(), system="be brief")


def typed(talk: Conversation, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Run the loop as if a person typed these lines, then Ctrl-D."""
    waiting = iter(lines)

    def read(_: str) -> str:
        try:
            return next(waiting)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    talk.loop()


def contents(talk: Conversation) -> list[str]:
    return [message["content"] for message in talk.messages]


def test_each_question_carries_what_was_said_before(talk: Conversation, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(talk, monkeypatch, "one", "two")
    assert contents(talk) == ["be brief", "one", "answer 1 to 2", "two", "answer 2 to 4"]
    assert [len(messages) for messages in script.seen] == [2, 4]


def test_an_interruption_stops_the_answer_and_keeps_its_beginning(talk: Conversation, script: Script) -> None:
    script.interrupt = True
    assert talk.ask("one") is False
    assert contents(talk) == ["be brief", "one", "answer 1 "]
    assert script.closed_early == 1
    script.interrupt = False
    assert talk.ask("two") is True
    assert contents(talk)[-1] == "answer 2 to 4"


def test_a_failure_takes_the_question_back(
    talk: Conversation, script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script.fail = True
    typed(talk, monkeypatch, "one")
    assert contents(talk) == ["be brief"]
    assert "no luck" in capsys.readouterr().err


def test_a_retry_that_fails_leaves_the_conversation_as_it_was(
    talk: Conversation, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(talk, monkeypatch, "one")
    script.fail = True
    typed(talk, monkeypatch, "/retry")
    assert contents(talk) == ["be brief", "one", "answer 1 to 2"]
    script.fail = False
    typed(talk, monkeypatch, "/retry")
    assert contents(talk) == ["be brief", "one", "answer 3 to 2"]


def test_an_answer_reaches_the_terminal_without_its_control_characters(
    talk: Conversation, script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    async def stream(*_: object) -> AsyncIterator[str]:
        for piece in ("fine\n\tcode \x1b", "]52;c;ZXZpbA==\x07", "\x9b2J\x7f\r ü 👩‍👩‍👧"):
            yield piece

    script.stream = stream
    talk.ask("one")
    assert capsys.readouterr().out == "fine\n\tcode ]52;c;ZXZpbA==2J ü 👩‍👩‍👧\n"
    assert "\x1b" in contents(talk)[-1], "the model sees its own words again as they were"


def test_commands_of_the_conversation(talk: Conversation, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(talk, monkeypatch, "one", "/retry", "/system be long", "two", "/clear", "three", "/exit", "never")
    assert [messages[-1]["content"] for messages in script.seen] == ["one", "one", "two", "three"]
    assert contents(talk) == ["be long", "three", "answer 4 to 2"]


def test_a_backslash_goes_on_in_the_next_line(talk: Conversation, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(talk, monkeypatch, "first\\", "second", "   ", "/unknown")
    assert script.seen == [[{"role": "system", "content": "be brief"}, {"role": "user", "content": "first\nsecond"}]]


def test_an_unknown_command_is_said_to_be_unknown(
    talk: Conversation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(talk, monkeypatch, "/frobnicate now", "/help")
    out = capsys.readouterr().out
    assert out.count("is unknown") == 1 and "/frobnicate is unknown. /clear forgets" in out


def test_figures_of_an_answer() -> None:
    assert str(Tally(100, 60, 11, 0.5, 1.5)) == "11 tokens, 10.0 tok/s, first after 0.50 s, prompt 100 (60 cached)"
    assert "tok/s" not in str(Tally(100, 60, 1, 0.5, 0.5))
