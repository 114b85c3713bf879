"""The dashboard as a person uses it: what it shows at three sizes, and what each key does."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from msgspec import structs
from textual.widgets import Input

from tests.tui.feed_server import serving
from tests.tui.frames import NOW, ROWS, RUNS, frame, key_event, row
from tests.tui.screen import dashboard, lines, press, text, until, until_text
from tui.feed.model import USED, Model, Run
from tui.screens.confirm import Confirm
from tui.widgets.block_map import BlockMap
from tui.widgets.request_table import RequestTable

SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.fixture
async def server():
    async with serving(key_event(frame())) as server:
        yield server


def requests(pilot) -> list[str]:
    """First words of the table's rows, as the screen shows them."""
    shown = lines(pilot)
    top = next(place for place, line in enumerate(shown) if "Request " in line) + 1
    found = [re.match(r"│ (?:.  )?\s*(?:█ )?([\w#-]+)", line) for line in shown[top:]]
    return [match[1] for match in found if match]


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize("view", ["overview", "blocks"])
async def test_the_screen_looks_as_it_did(server, size, view):
    async with dashboard(server.url, size) as pilot:
        await until_text(pilot, "agent-one")
        if view == "blocks":
            await press(pilot, "2")
        shown = re.sub(r"127\.0\.0\.1:\d{4,5}", "127.0.0.1:PORT", text(pilot)) + "\n"
    path = SNAPSHOTS / f"{view}-{size[0]}x{size[1]}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(shown, "utf-8")
    assert squeezed(shown) == squeezed(path.read_text("utf-8")), f"the screen changed; if it should, UPDATE_SNAPSHOTS=1\n{shown}"


def squeezed(screen: str) -> str:
    """Without the run of spaces whose length depends on how many digits the port has."""
    return re.sub(r" +(?=up |127)", " ", screen)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60), (60, 15), (30, 8)])
async def test_nothing_breaks_at_any_size(server, size):
    async with dashboard(server.url, size) as pilot:
        await until(pilot, lambda: pilot.app.query_one(RequestTable).row_count == len(ROWS))
        await press(pilot, "2", "3", "1", "question_mark", "escape")
        assert all(len(line) <= size[0] for line in lines(pilot))


async def test_every_state_of_a_request_has_its_word(server):
    rows = (*ROWS, row(5, "aborted"), row(6, "failed"), row(7, "unheard-of"))
    server.first = key_event(frame(rows=rows))
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "Pending", "Running", "Preempted", "Completed", "Aborted", "Failed", "Unknown", "Running 50%")


async def test_what_the_disk_holds_is_shown_and_so_is_damage_and_that_there_is_no_disk(server):
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "disk 375  133 MiB of 8.0 GiB")
        totals = structs.replace(frame().totals, n_damaged=3)
        await server.send(key_event(frame(2, totals=totals)))
        await until_text(pilot, "disk 375  133 MiB  damaged 3")
        await server.send(key_event(frame(3, totals=structs.replace(totals, disk_most_bytes=0))))
        await until_text(pilot, "disk none")


async def test_a_request_goes_through_its_states_in_one_row(server):
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "agent-one")
        for seq, state in enumerate(("pending", "running", "preempted", "running", "completed"), 2):
            await server.send(key_event(frame(seq, rows=(row(11, state),))))
            await until(pilot, lambda: pilot.app.query_one(RequestTable).row_count == 1)
            await until_text(pilot, state.capitalize())
        await server.send(key_event(frame(9, rows=())))
        await until(pilot, lambda: pilot.app.query_one(RequestTable).row_count == 0)


async def test_numbers_keys_change_the_view(server):
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "Throughput", "KV blocks", "Requests ")
        small = pilot.app.query_one(BlockMap).size.height
        await press(pilot, "2")
        assert "Throughput" not in text(pilot) and pilot.app.query_one(BlockMap).size.height > 3 * small
        assert re.search(r"agent-one 53\s+.* agent-two 37", text(pilot)), "the owners' legend"
        await press(pilot, "3")
        assert "KV blocks" not in text(pilot) and "agent-one" in text(pilot)
        await press(pilot, "1")
        assert "Throughput" in text(pilot) and pilot.app.query_one(BlockMap).size.height == small


async def test_sort_goes_through_the_orders(server):
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "sorted by state")
        assert requests(pilot) == ["agent-one", "agent-two", "chat-three", "agent-four", "agent-five", "chatcmpl-done"]
        await press(pilot, "s")
        await until_text(pilot, "sorted by oldest")
        assert requests(pilot)[0] == "chatcmpl-done"
        await press(pilot, "s")
        await until_text(pilot, "sorted by newest")
        assert requests(pilot)[0] == "agent-five"


async def test_the_cursor_stays_on_its_request_while_rows_move(server):
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "agent-one")
        await press(pilot, "down", "down")
        table = pilot.app.query_one(RequestTable)
        assert table.selected.id == "chat-three"
        await press(pilot, "s")
        await until_text(pilot, "sorted by oldest")
        assert table.selected.id == "chat-three"
        await server.send(key_event(frame(2, rows=ROWS[1:])))
        await until(pilot, lambda: table.row_count == len(ROWS) - 1)
        assert table.selected.id == "chat-three"


async def test_filter_keeps_what_contains_the_text(server):
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "agent-one")
        await press(pilot, "slash", *"nt-f", "enter")
        await until(pilot, lambda: set(requests(pilot)) == {"agent-four", "agent-five"})
        assert "filter: nt-f" in text(pilot)
        await press(pilot, "escape")
        await until(pilot, lambda: len(requests(pilot)) == len(ROWS))


async def test_keys_typed_into_the_filter_are_no_commands(server):
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "agent-one")
        await press(pilot, "slash", "q", "x", "2")
        assert pilot.app.query_one("#filter", Input).value == "qx2"
        assert pilot.app.is_running and "Throughput" in text(pilot)


async def test_abort_asks_and_then_tells_the_server(server):
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "agent-one")
        await press(pilot, "x")
        assert isinstance(pilot.app.screen, Confirm) and "Abort agent-one?" in text(pilot)
        await press(pilot, "y")
        await until(pilot, lambda: "POST /api/requests/11/abort" in server.requests)
        await until_text(pilot, "Aborting agent-one")


async def test_abort_does_nothing_when_the_person_says_no(server):
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "agent-one")
        await press(pilot, "x", "n")
        assert not isinstance(pilot.app.screen, Confirm)
        assert not any(request.startswith("POST") for request in server.requests)


async def test_a_refused_abort_says_why(server):
    server.abort_answer = (403, b'{"error":{"message":"Not [today]."}}')
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "agent-one")
        await press(pilot, "x", "y")
        await until_text(pilot, "Not aborted", "Not [today].")


@pytest.mark.parametrize(("readonly", "control"), [(True, "open"), (False, "readonly")])
async def test_abort_is_off_where_it_is_not_allowed(server, readonly, control):
    server.first = key_event(frame(control=control))
    async with dashboard(server.url, readonly=readonly) as pilot:
        await until_text(pilot, "agent-one")
        await press(pilot, "x")
        assert not isinstance(pilot.app.screen, Confirm)
        assert not any(request.startswith("POST") for request in server.requests)


async def test_an_ended_request_cannot_be_aborted(server):
    server.first = key_event(frame(rows=ROWS[:1]))
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "chatcmpl-done")
        await press(pilot, "x")
        await until_text(pilot, "no running request under the cursor")


async def test_freeze_holds_the_picture(server):
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "agent-one")
        await press(pilot, "p")
        await server.send(key_event(frame(2, rows=(row(77, id="newcomer"),))))
        await until(pilot, lambda: pilot.app.client.state.frame.seq == 2)
        await pilot.pause(0.3)
        assert "frozen" in text(pilot) and "newcomer" not in text(pilot)
        await press(pilot, "p")
        await until_text(pilot, "newcomer")


async def test_a_slow_terminal_paints_only_the_newest_frame(server):
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "agent-one")
        painted = []
        table = pilot.app.query_one(RequestTable)
        show = table.show
        table.show = lambda shown, hues: (painted.append(shown.seq), show(shown, hues))
        for seq in range(2, 202):
            await server.send(key_event(frame(seq), ()))
        await until(pilot, lambda: painted[-1:] == [201])
        assert len(painted) < 100


async def test_plus_and_minus_change_the_rate(server):
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "live 4/s")
        await press(pilot, "minus", "minus", "minus", "minus")
        assert "live 0.5/s" in text(pilot)
        await press(pilot, "plus")
        assert "live 1/s" in text(pilot)


async def test_the_spotlight_falls_on_the_request_under_the_cursor(server):
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "agent-one")
        shown = pilot.app.query_one(BlockMap)
        plain = shown.render_line(0)
        await press(pilot, "enter")
        lit = shown.render_line(0)
        assert lit.text == plain.text and list(lit) != list(plain)
        await press(pilot, "escape")
        assert list(shown.render_line(0)) == list(plain)


async def test_arrows_move_the_spotlight_on_the_block_map(server):
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "agent-one")
        await press(pilot, "2", "right")
        assert pilot.app.spot == 11
        await press(pilot, "right")
        assert pilot.app.spot == 12
        await press(pilot, "left", "left")
        assert pilot.app.spot == 13


async def test_copy_id(server):
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "agent-one")
        await press(pilot, "down", "y")
        assert pilot.app.clipboard == "agent-two"


async def test_save_svg_writes_a_picture_into_the_working_directory(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "agent-one")
        await press(pilot, "w")
        (picture,) = tmp_path.glob("*.svg")
        drawn = picture.read_text("utf-8")
        assert "agent-one" in drawn and not re.search(r"url\(\W*http", drawn), "a picture fetches nothing"


async def test_help_names_every_key(server):
    async with dashboard(server.url, (100, 50)) as pilot:
        await until_text(pilot, "agent-one")
        await press(pilot, "question_mark")
        shown = text(pilot)
        assert all(binding.tooltip in shown for binding in pilot.app.BINDINGS)
        await press(pilot, "escape")
        assert "Throughput" in text(pilot)


async def test_q_quits(server):
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "agent-one")
        await pilot.press("q")
        await until(pilot, lambda: not pilot.app.is_running)


async def test_theme_goes_from_dark_to_light(server):
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "agent-one")
        dark = list(pilot.app.query_one(BlockMap).render_line(0))
        await press(pilot, "t")
        assert pilot.app.theme == "pagewell-light"
        assert list(pilot.app.query_one(BlockMap).render_line(0)) != dark


async def test_without_colour_the_letters_of_map_and_table_agree(server, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "agent-one")
        shown = text(pilot)
        assert "A" * 12 + "a" * 40 + "b" * 25 + "░" * 31 + "ccc" in shown
        assert re.search(r"a agent-one", shown) and re.search(r"b agent-two", shown) and re.search(r"c chat-three", shown)


async def test_a_strangers_id_is_only_text(server):
    server.first = key_event(frame(rows=(row(11, id="[red]\x1b[2J[/]\nend"),)))
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "[red] [2J[/] end")
        await press(pilot, "x")
        assert "Abort [red] [2J[/] end?" in text(pilot)
        await press(pilot, "n", "slash", *"[red", "enter")
        await until_text(pilot, "filter: [red")


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        (Model(state="loading", name="big", progress=0.42), ("big is loading", "42%")),
        (Model(state="failed", name="big", error="No tensor blk.0.\nCheck it."), ("big is not available", "No tensor blk.0.")),
        (Model(state="unloaded", name="big"), ("big is unloaded", "The next request loads it again")),
    ],
)
async def test_a_model_that_is_not_ready_is_explained(server, model, wanted):
    server.first = key_event(frame(model=model, runs=(), rows=()))
    async with dashboard(server.url) as pilot:
        await until_text(pilot, *wanted)
        await server.send(key_event(frame(2)))
        await until_text(pilot, "Throughput", "agent-one")


async def test_old_figures_are_marked(server):
    server.first = key_event(frame(age_s=3.2))
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "figures 3s old")


async def test_a_queue_too_long_to_list_is_counted(server):
    server.first = key_event(frame(n_hidden=400))
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "2 waiting (400 of them not listed)")


async def test_a_thousand_frames_of_a_busy_server_leave_one_row_for_each_request(server):
    async with dashboard(server.url) as pilot:
        await until_text(pilot, "agent-one")
        for seq in range(2, 12):
            rows = tuple(row(uid, n_output=seq) for uid in range(seq, seq + 20))
            runs = tuple(Run(USED, uid, 3) for uid in range(seq, seq + 20)) + RUNS[-1:]
            pilot.app.client.state.frame = frame(seq, rows=rows, runs=runs, time_s=NOW + seq)
            pilot.app.paint()
            await pilot.pause()
            table = pilot.app.query_one(RequestTable)
            assert table.row_count == 20
            assert [table.get_row_at(place)[0].key[0] for place in range(20)] == list(range(seq, seq + 20))
