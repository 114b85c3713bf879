"""The dashboard of a server that has several models: which are in memory, which wait, and whose each request is."""

from __future__ import annotations

from msgspec import structs
from rich.console import Console

from tests.tui.feed_server import serving
from tests.tui.frames import ROWS, frame, key_event
from tests.tui.screen import dashboard, lines, press, until_text
from tui.feed.model import Frame, Model
from tui.once import print_frame

FIRST = structs.replace(frame().model, name="first-4B", kv_groups={"all tokens": 300}, kv_bytes=1 << 30, weights_bytes=2 << 30)
SECOND = structs.replace(
    FIRST, name="second-1B", kv_groups={"all tokens": 200, "state": 12}, kv_bytes=1 << 30, weights_bytes=1 << 30
)
WAITING = Model(state="waiting", name="third-8B", waits_for=("first-4B",))


def several(*models: Model, seq: int = 1) -> Frame:
    rows = tuple(structs.replace(row, model=(FIRST, SECOND)[place % 2].name) for place, row in enumerate(ROWS))
    return frame(seq, model=models[0], models=models, rows=rows)


async def test_each_request_has_its_model_and_the_header_all_of_them() -> None:
    async with serving(key_event(several(FIRST, SECOND, WAITING))) as server, dashboard(server.url, (160, 60)) as pilot:
        await until_text(pilot, "agent-one", "Model", "● second-1B", "◌ third-8B")
        assert any("agent-one" in line and "second-1B" in line for line in lines(pilot))
        assert any("agent-two" in line and "first-4B" in line for line in lines(pilot))
        await until_text(pilot, "first-4B: 300 × 16 tokens + second-1B: 200 all tokens, 12 state × 16 tokens")
        await until_text(pilot, "KV 2.0 GiB  weights 3.0 GiB")
        await press(pilot, "slash", *"second", "enter")
        shown = "\n".join(lines(pilot))
        assert "agent-one" in shown and "agent-two" not in shown


async def test_one_model_takes_no_room_for_its_name() -> None:
    async with serving(key_event(frame(models=(FIRST,), model=FIRST))) as server, dashboard(server.url, (160, 40)) as pilot:
        await until_text(pilot, "agent-one")
        assert not any("Request " in line and "Model" in line for line in lines(pilot))


async def test_a_model_that_waits_says_for_what() -> None:
    async with serving(key_event(frame(models=(WAITING,), model=WAITING))) as server, dashboard(server.url) as pilot:
        await until_text(pilot, "third-8B waits for room", "Answers of first-4B end first.")


def test_the_frame_in_words_has_all_models(capsys) -> None:
    print_frame(several(FIRST, SECOND, WAITING), Console(width=160, no_color=True))
    out = capsys.readouterr().out
    assert "also second-1B  ready" in out and "also third-8B  waiting for first-4B" in out
    assert any("agent-one" in line and "second-1B" in line for line in out.splitlines())
