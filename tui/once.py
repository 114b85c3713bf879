"""One look at a server, for scripts and for eyes: the frame as JSON, or as text."""

from __future__ import annotations

import asyncio

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tui import columns, text
from tui.feed.client import FeedClient, FeedError
from tui.feed.model import Frame
from tui.look import DARK


def snapshot(client: FeedClient) -> bytes:
    """One frame as the server's JSON. Raises FeedError."""

    async def fetch() -> bytes:
        try:
            return await client.snapshot()
        finally:
            await client.close()

    return asyncio.run(fetch())


def parse(data: bytes) -> Frame:
    """Raises FeedError for what is no frame."""
    try:
        return msgspec.json.decode(data, type=Frame)
    except msgspec.MsgspecError as error:
        raise FeedError(f"What answers there has no stats feed ({error}).") from error


def print_frame(frame: Frame, console: Console) -> None:
    """The frame as a few lines and a table."""
    model, totals, rates, latency = frame.model, frame.totals, frame.rates, frame.latency
    console.print(Text(f"{text.plain(model.name, 60)}  {text.plain(model.state, 12)}", "bold"))
    if model.state != "ready":
        console.print(Text(text.lines(model.error) or f"{text.share(model.progress)} loaded"))
        return
    for line in (
        f"{text.plain(model.quantization, 20)}, {text.plain(model.dtype, 20)}, "
        f"window {model.max_model_len:,}, up {text.age(frame.process.up_s)}",
        *([f"memory: {text.plain(model.memory_note, 300)}"] if model.memory_note else []),
        f"generation {text.rate(rates.output_tok_s)} tok/s, prefill {text.rate(rates.prompt_tok_s)} tok/s",
        f"TTFT p50 {text.duration(latency.ttft_p50_s)} p95 {text.duration(latency.ttft_p95_s)}, "
        f"ITL p50 {text.duration(latency.itl_p50_s)} p95 {text.duration(latency.itl_p95_s)}",
        f"blocks {totals.n_used} used ({totals.n_shared} shared), {totals.n_cached} cached, {totals.n_free} free "
        f"of {totals.n_blocks}, waste {totals.waste:.1%}; prefix hits {text.share(totals.hit_rate)}",
        f"host {totals.n_host_used} of {totals.n_host_blocks} blocks, disk {totals.n_disk_blocks} blocks, "
        f"{text.size(totals.disk_bytes)} of {text.size(totals.disk_most_bytes)}, {totals.n_damaged} damaged",
        f"{totals.n_running} running, {totals.n_waiting} waiting, {totals.n_preemptions} preemptions",
    ):
        console.print(Text(line))
    for other in frame.models[1:]:
        waits = f" for {', '.join(text.plain(name, 40) for name in other.waits_for)}" if other.waits_for else ""
        console.print(Text(f"also {text.plain(other.name, 60)}  {text.plain(other.state, 12)}{waits}"))
    if frame.requests:
        width = console.width if console.is_terminal else _PIPE_WIDTH
        console.print(_table(frame, max(columns.MIN_ID_WIDTH, width - _FIXED_WIDTH)), width=width)


_PIPE_WIDTH = 120
_FIXED_WIDTH = sum(column.width + 1 for column in columns.COLUMNS if not column.for_several)


def _table(frame: Frame, id_width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    shown = [column for column in columns.COLUMNS if len(frame.loaded) > 1 or not column.for_several]
    for column in shown:
        table.add_column(column.label, justify="right" if column.right else "left", no_wrap=True)
    for row in frame.requests:
        cells = (columns.cell(column.key, row, frame.time_s, id_width, DARK) for column in shown)
        table.add_row(*(Text(cell.text, cell.style) for cell in cells))
    return table
