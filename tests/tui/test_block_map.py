"""The block map: how each state looks, with and without colour, and which rows are painted again."""

from __future__ import annotations

import msgspec
import pytest
from textual.app import App, ComposeResult

from tests.tui.frames import frame
from tui.feed.model import CACHED, FREE, SHARED, USED, Run
from tui.hues import Hues
from tui.look import DARK
from tui.widgets.block_map import BlockMap, layout


class CountingMap(BlockMap):
    """Notes which rows are painted."""

    def __init__(self, max_rows: int) -> None:
        super().__init__(max_rows=max_rows)
        self.painted: list[int] = []

    def render_line(self, y):
        self.painted.append(y)
        return super().render_line(y)


class MapApp(App[None]):
    """A block map and nothing else."""

    CSS = "BlockMap { width: 20; }"

    def __init__(self, max_rows: int = 8) -> None:
        super().__init__()
        self.map = CountingMap(max_rows)
        self.hues = Hues(len(DARK.owners))
        self.hues.update([1, 2])

    def compose(self) -> ComposeResult:
        yield self.map


async def shown(pilot, *runs: Run, spot: int | None = None):
    app = pilot.app
    app.map.show(frame(runs=runs), app.hues, spot)
    await pilot.pause()
    await pilot.pause()
    return [app.map.render_line(y) for y in range(app.map.content_size.height)]


def cell(strip, x: int):
    """Glyph, foreground and background of a cell."""
    (segment,) = strip.crop(x, x + 1)
    return segment.text, segment.style.color.name, segment.style.bgcolor.name


PAIRS = [(a, b) for a in (FREE, USED, SHARED, CACHED) for b in (FREE, USED, SHARED, CACHED)]


@pytest.mark.parametrize(("first", "second"), PAIRS)
async def test_two_blocks_share_a_cell(first, second):
    async with MapApp().run_test(size=(40, 12)) as pilot:
        owner = {USED: 1, SHARED: 1}
        (strip,) = await shown(pilot, Run(first, owner.get(first, -1), 1), Run(second, owner.get(second, -1), 1))
        glyph, foreground, background = cell(strip, 0)
        if first == second:
            assert glyph == {FREE: "·", USED: "█", SHARED: "▚", CACHED: "░"}[first]
        else:
            assert glyph == "▀" and foreground != background


async def test_every_state_and_owner_has_a_colour_of_its_own():
    async with MapApp().run_test(size=(40, 12)) as pilot:
        looks = [(USED, 1), (USED, 2), (SHARED, 1), (SHARED, 2), (CACHED, -1), (FREE, -1)]
        (strip,) = await shown(pilot, *(Run(state, owner, 2) for state, owner in looks))
        cells = [cell(strip, x) for x in range(len(looks))]
        assert len(set(cells)) == len(looks)
        assert cells[0][1] == DARK.owners[0]


async def test_the_spotlight_dims_all_blocks_but_one_requests():
    async with MapApp().run_test(size=(40, 12)) as pilot:
        runs = Run(USED, 1, 2), Run(USED, 2, 2)
        (plain,) = await shown(pilot, *runs)
        (lit,) = await shown(pilot, *runs, spot=2)
        assert cell(lit, 0) != cell(plain, 0)
        assert cell(lit, 1) == cell(plain, 1)


async def test_without_colour_letters_tell_owners_and_capitals_sharing():
    app = MapApp()
    app.no_color = True
    async with app.run_test(size=(40, 12)) as pilot:
        (strip,) = await shown(pilot, Run(USED, 1, 3), Run(SHARED, 2, 2), Run(CACHED, -1, 2), Run(FREE, -1, 1), Run(USED, 77, 1))
        assert strip.text == "aaaBB░░·█".ljust(20)


async def test_the_map_is_as_high_as_the_pool_needs():
    async with MapApp().run_test(size=(40, 12)) as pilot:
        assert len(await shown(pilot, Run(FREE, -1, 40))) == 1
        assert len(await shown(pilot, Run(FREE, -1, 41))) == 2
        assert len(await shown(pilot, Run(FREE, -1, 4000))) == 8


async def test_only_the_rows_that_changed_are_painted_again():
    async with MapApp().run_test(size=(40, 12)) as pilot:
        await shown(pilot, Run(FREE, -1, 200))
        await pilot.pause(0.05)
        painted = pilot.app.map.painted
        painted.clear()
        pilot.app.map.show(frame(runs=(Run(FREE, -1, 85), Run(USED, 1, 1), Run(FREE, -1, 114))), pilot.app.hues, None)
        await pilot.pause(0.05)
        assert set(painted) == {2}
        painted.clear()
        pilot.app.map.show(frame(2, runs=(Run(FREE, -1, 85), Run(USED, 1, 1), Run(FREE, -1, 114))), pilot.app.hues, None)
        await pilot.pause(0.05)
        assert painted == []


async def test_a_block_that_changes_hands_is_painted_again():
    async with MapApp().run_test(size=(40, 12)) as pilot:
        (before,) = await shown(pilot, Run(USED, 1, 4))
        (after,) = await shown(pilot, Run(USED, 2, 4))
        assert cell(before, 0) != cell(after, 0)


async def test_tens_of_thousands_of_blocks_fit_and_none_in_use_is_lost():
    async with MapApp(max_rows=4).run_test(size=(40, 12)) as pilot:
        strips = await shown(pilot, Run(FREE, -1, 60_000), Run(USED, 2, 1), Run(FREE, -1, 19_999))
        assert len(strips) == 4
        places = [cell(strip, x) for strip in strips for x in range(20)]
        assert sum(glyph == "▀" for glyph, _, _ in places) == 1
        assert "500 blocks a place" in str(pilot.app.map.border_title)


async def test_blocks_of_several_kinds_are_counted_apart():
    async with MapApp().run_test(size=(90, 12)) as pilot:
        await shown(pilot, Run(FREE, -1, 40))
        assert "40 × 16 tokens" in str(pilot.app.map.border_title)
        groups = {"all tokens": 32, "window of 512": 9}
        later = frame(runs=(Run(FREE, -1, 41),))
        model = msgspec.structs.replace(later.model, kv_groups=groups)
        pilot.app.map.show(msgspec.structs.replace(later, model=model), pilot.app.hues, None)
        await pilot.pause()
        assert "32 all tokens, 9 window of 512 × 16 tokens" in str(pilot.app.map.border_title)


@pytest.mark.parametrize(
    ("n_blocks", "mono", "roomy", "expected"),
    [
        (100, False, False, (1, 2, 1)),
        (1000, False, False, (3, 2, 1)),
        (100, True, False, (1, 1, 1)),
        (1000, True, False, (5, 1, 1)),
        (100, False, True, (1, 1, 2)),
        (200, False, True, (1, 1, 1)),
        (400, False, True, (1, 2, 1)),
    ],
)
def test_blocks_are_as_large_as_fits(n_blocks, mono, roomy, expected):
    assert tuple(layout(n_blocks, 20, 10, mono=mono, roomy=roomy)) == expected


@pytest.mark.parametrize("roomy", [False, True])
async def test_a_state_of_a_newer_server_is_shown_as_unknown(roomy):
    app = MapApp()
    app.map.roomy = roomy
    async with app.run_test(size=(40, 12)) as pilot:
        for spot in (None, 2):
            strips = await shown(pilot, Run(9, 1, 4), Run(USED, 1, 5), Run(9, -1, 1), Run(FREE, -1, 20), spot=spot)
            text = "".join(strip.text for strip in strips)
            assert text.startswith("??") and "█" in text
