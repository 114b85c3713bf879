"""The dashboard against a real server: a running request and its blocks, from Pending to Completed, and an abort."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import httpx
import pytest

from tests.e2e.server import LiveServer
from tests.tui.screen import dashboard, press, until, until_text
from tui.feed.model import SHARED, USED
from tui.widgets.block_map import BlockMap
from tui.widgets.request_table import RequestTable


@asynccontextmanager
async def answering(server: LiveServer, prompt: str, n: int = 1):
    """A streamed completion that goes on until it is left; yields the lines that came so far."""
    lines: list[str] = []
    body = {"model": server.model, "prompt": prompt, "max_tokens": 1500, "ignore_eos": True, "n": n, "stream": True}

    async def read(response: httpx.Response) -> None:
        async for line in response.aiter_lines():
            lines.append(line)

    async with (
        httpx.AsyncClient(base_url=server.url, timeout=60) as http,
        http.stream("POST", "/v1/completions", json=body) as response,
    ):
        assert response.status_code == 200
        reading = asyncio.create_task(read(response))
        try:
            yield lines
        finally:
            reading.cancel()


@pytest.fixture
def idle(server):
    server.wait_idle()
    yield server
    server.wait_idle()


def map_text(pilot) -> str:
    """The block map's glyphs."""
    shown = pilot.app.query_one(BlockMap)
    return "".join(shown.render_line(y).text for y in range(shown.content_size.height))


async def test_a_running_request_and_its_blocks_are_seen_and_it_can_be_aborted(idle):
    async with dashboard(idle.url) as pilot:
        app = pilot.app
        await until_text(pilot, "● ready", "live", seconds=30)
        table = app.query_one(RequestTable)
        async with answering(idle, "Once upon a time there was a small server. " * 30) as lines:
            await until(
                pilot,
                lambda: table.selected is not None and table.selected.state == "running" and table.selected.n_output > 5,
                seconds=60,
            )
            row = table.selected
            assert row.n_blocks >= (row.n_prompt + row.n_output) // 16
            held = [run for run in app.client.state.frame.blocks if run.owner == row.uid]
            assert sum(run.count for run in held if run.state in (USED, SHARED)) > 0
            assert "█" in map_text(pilot)
            assert any(point.output_tok_s > 0 for point in app.client.state.history)
            await press(pilot, "x", "y")
            await until(pilot, lambda: table.selected.state == "aborted", seconds=30)
            assert any('"text"' in line for line in lines)
        await until(pilot, lambda: app.client.state.frame.totals.n_used == 0, seconds=30)
        await until_text(pilot, "Aborted")


async def test_choices_of_one_request_share_blocks(idle):
    async with dashboard(idle.url) as pilot:
        await until_text(pilot, "● ready", "live", seconds=30)
        async with answering(idle, "The three brothers went out into the world. " * 50, n=3):
            await until(pilot, lambda: pilot.app.client.state.frame.totals.n_shared > 5, seconds=60)
            await until(pilot, lambda: pilot.app.query_one(RequestTable).row_count >= 3)
            await until(pilot, lambda: "▚" in map_text(pilot))
        await until(pilot, lambda: pilot.app.client.state.frame.totals.n_used == 0, seconds=30)
        await until_text(pilot, "Aborted")
