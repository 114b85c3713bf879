"""Stop strings in text that arrives in pieces."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.stops import StopStrings


def first_completed(text: str, stops: list[str]) -> tuple[int, str] | None:
    """The obvious way: the stop string that ends earliest, the longest of those."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if stop and text.endswith(stop, 0, end)]
        if found:
            stop = max(found, key=len)
            return end - len(stop), stop
    return None


def run(pieces: list[str], stops: list[str], include: bool = False) -> tuple[str, str | None]:
    watch = StopStrings(stops, include=include)
    text = "".join(map(watch.push, pieces))
    return text + watch.flush(), watch.matched


@given(st.lists(st.text("abc", max_size=4), max_size=12), st.lists(st.text("abc", max_size=4), max_size=4), st.booleans())
def test_the_result_is_that_of_a_search_in_the_whole_text(pieces, stops, include):
    whole = "".join(pieces)
    match = first_completed(whole, stops)
    if match is None:
        assert run(pieces, stops, include) == (whole, None)
    else:
        start, stop = match
        assert run(pieces, stops, include) == (whole[: start + len(stop) * include], stop)


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4))
def test_only_what_could_become_a_stop_string_is_held_back(text, stops):
    watch = StopStrings(stops)
    emitted = ""
    for n_read, char in enumerate(text, 1):
        emitted += watch.push(char)
        if watch.matched is not None:
            return
        held = text[len(emitted) : n_read]
        beginnings = [stop[:k] for stop in stops for k in range(1, len(stop)) if text.endswith(stop[:k], 0, n_read)]
        assert held == max(beginnings, key=len, default="")


def test_a_stop_string_over_three_pieces_is_never_shown():
    watch = StopStrings(["</tool_call>"])
    assert watch.push("done </tool") == "done "
    assert watch.push("_ca") == ""
    assert watch.push("ll> and more") == ""
    assert watch.matched == "</tool_call>"
    assert watch.push("more") == "" == watch.flush()


def test_a_false_start_is_released():
    watch = StopStrings(["</tool_call>"])
    assert watch.push("a </to") == "a "
    assert watch.push("p>") == "</top>"
    assert watch.matched is None


def test_a_held_beginning_comes_out_at_the_end():
    watch = StopStrings(["END"])
    assert watch.push("the EN") == "the "
    assert watch.flush() == "EN"


@pytest.mark.parametrize(
    ("text", "stops", "kept", "matched"),
    [
        ("xaby", ["b", "a"], "x", "a"),
        ("abcd", ["abcd", "bc"], "a", "bc"),
        ("xyz", ["yz", "xyz", "z"], "", "xyz"),
        ("aab", ["ab"], "a", "ab"),
        ("abab", [""], "abab", None),
        ("日本語。次", ["。"], "日本語", "。"),
    ],
)
def test_the_first_to_be_completed_wins_and_of_those_the_longest(text, stops, kept, matched):
    assert run(list(text), stops) == (kept, matched)
    assert run([text], stops) == (kept, matched)


def test_the_stop_string_is_kept_when_asked():
    assert run(["a", "b", "c", "d"], ["bc"], include=True) == ("abc", "bc")


def test_memory_grows_with_the_characters_of_the_stop_strings_and_equal_ones_share_it():
    rng = random.Random(1)
    stops = ["".join(rng.choices("abcdefgh ", k=40)) for _ in range(800)]
    tracemalloc.start()
    try:
        first = StopStrings(stops)
        n_bytes, peak = tracemalloc.get_traced_memory()
        assert peak < 16e6, "32,000 characters"
        choices = [StopStrings(list(stops)) for _ in range(16)]
        assert tracemalloc.get_traced_memory()[0] - n_bytes < 1e6
    finally:
        tracemalloc.stop()
    assert first.push("x" + stops[799][:39]) == "x"
    assert choices[0].push(stops[3]) == "" and choices[0].matched == stops[3]
    assert first.push(stops[799][39]) == "" and first.matched == stops[799], "what another choice read changes nothing"
