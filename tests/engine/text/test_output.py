"""OutputText: law g (the joined stream is the whole text) over real tokens, and where text is cut."""

from __future__ import annotations

import codecs
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.output import OutputText
from tests import models
from tests.engine.text import oracle
from tests.engine.text.test_stops import first_completed

each_model = pytest.mark.parametrize(
    "path_of",
    [
        models.smollm2,
        pytest.param(models.qwen_05b, marks=pytest.mark.models),
        pytest.param(models.qwen_15b, marks=pytest.mark.models),
        pytest.param(models.gemma, marks=pytest.mark.models),
    ],
    ids=["smollm2", "qwen 0.5b", "qwen 1.5b", "gemma"],
)

SMOLLM2_IDS = st.integers(0, 49151)
TEXT = st.text(st.characters(codec="utf-8", max_codepoint=0x3FFFF, exclude_categories=["Cc", "Cs"]), max_size=60)
"""Without what SmolLM2's vocabulary has no bytes for: some control characters, and F1 with which later ones begin."""
BYTES_AND_MORE = st.one_of(st.integers(17, 251), st.integers(0, 16), SMOLLM2_IDS)
"""Single bytes (ids 17 to 251), special tokens and ordinary ones: most streams are broken UTF-8."""


@pytest.fixture(scope="module")
def smollm2():
    return oracle.ours(models.smollm2())


def stream(tokenizer, ids, **options) -> tuple[list[str], OutputText]:
    output = OutputText(tokenizer, **options)
    return [output.push(i) for i in ids] + [output.finish()], output


def whole_text(tokenizer, ids, skip_special: bool) -> str:
    """All bytes decoded at once; an unfinished last character has no place in it."""
    names = {i: tokenizer.token_text(i).encode() for i in tokenizer.special_ids} if not skip_special else {}
    return b"".join(names.get(i) or tokenizer.token_bytes(i) for i in ids).decode(errors="pagewell-test-replace")


_HALF_SURROGATE = re.compile(rb"\xed[\xa0-\xbf]")
"""Python's incremental decoder takes it for unfinished, since there is an error handler that lets surrogates pass."""


def _replace_or_drop(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    if _HALF_SURROGATE.fullmatch(error.object, error.start):
        return "", len(error.object)
    return "" if error.reason == "unexpected end of data" else "\ufffd", error.end


codecs.register_error("pagewell-test-replace", _replace_or_drop)


@settings(max_examples=300, deadline=None)
@given(st.lists(BYTES_AND_MORE, max_size=40), st.booleans())
def test_the_joined_stream_is_the_whole_text(ids, skip_special):
    tokenizer = oracle.ours(models.smollm2())
    pieces, _ = stream(tokenizer, ids, skip_special=skip_special)
    assert "".join(pieces) == whole_text(tokenizer, ids, skip_special)


@settings(max_examples=300, deadline=None)
@given(st.lists(BYTES_AND_MORE, max_size=40), st.data(), st.booleans())
def test_the_joined_stream_is_the_whole_text_cut_at_the_stop_string(ids, data, include):
    tokenizer = oracle.ours(models.smollm2())
    whole = whole_text(tokenizer, ids, skip_special=True)
    cuts = st.integers(0, len(whole))
    stops = [whole[a:b] for a, b in data.draw(st.lists(st.tuples(cuts, cuts), max_size=3))] + data.draw(
        st.lists(st.text(max_size=3), max_size=2)
    )
    pieces, output = stream(tokenizer, ids, stop=stops, include_stop=include)
    match = first_completed(whole, stops)
    if match is None:
        assert output.stopped is None
        assert "".join(pieces) == whole
    else:
        start, stop = match
        assert output.stopped == stop
        assert "".join(pieces) == whole[: start + len(stop) * include]


@settings(max_examples=100, deadline=None)
@given(TEXT, st.lists(st.text(min_size=1, max_size=5), max_size=3))
def test_text_survives_tokens_and_stops(text, stops):
    tokenizer = oracle.ours(models.smollm2())
    ids = tokenizer.encode(text, parse_special=False)
    match = first_completed(text, stops)
    expected = text if match is None else text[: match[0]]
    assert "".join(stream(tokenizer, ids, stop=stops)[0]) == expected


def test_a_stop_string_across_token_borders_is_cut_exactly(smollm2):
    ids = smollm2.encode("The answer is 42.\n\nUser: next")
    assert len(smollm2.encode("\n\nUser:")) > 2
    pieces, output = stream(smollm2, ids, stop=["\n\nUser:"])
    assert "".join(pieces) == "The answer is 42."
    assert output.stopped == "\n\nUser:"


MIXED = "naïve 日本の首都は 🙂👩‍👩‍👧 東京。\n\nUser: 한국어 👍🏽 ok</tool_call> 中文，end"


@each_model
@pytest.mark.parametrize("stop", ["\n\nUser:", "首都は 🙂", "‍👩", "東京。\n", "어 👍🏽 o", "</tool_call>", "中文，end", "🚀"])
@pytest.mark.parametrize("include", [False, True])
def test_emoji_cjk_and_stop_strings_across_borders_on_every_vocabulary(path_of, stop, include):
    tokenizer = oracle.ours(path_of())
    ids = tokenizer.encode(MIXED, add_special=False)
    pieces, output = stream(tokenizer, ids, stop=[stop, "never"], include_stop=include)
    before, found, _ = MIXED.partition(stop)
    assert "".join(pieces) == before + (found if include else "")
    assert output.stopped == (found or None)
    assert "\ufffd" not in "".join(pieces)


@each_model
def test_the_joined_stream_of_any_ids_is_the_whole_text_on_every_vocabulary(path_of):
    tokenizer = oracle.ours(path_of())
    rng = random.Random(1)
    mixed = tokenizer.encode(MIXED)
    parts = [i for i in mixed if tokenizer.token_text(i) == "\ufffd"]
    choices = [lambda: rng.randrange(tokenizer.vocab_size), lambda: rng.choice(mixed), lambda: rng.choice(parts or mixed)]
    n_broken = 0
    for _ in range(200):
        ids = [rng.choice(choices)() for _ in range(rng.randrange(40))]
        skip_special = rng.random() < 0.5
        whole = whole_text(tokenizer, ids, skip_special)
        assert "".join(stream(tokenizer, ids, skip_special=skip_special)[0]) == whole
        n_broken += "\ufffd" in whole
        a, b = sorted(rng.randrange(len(whole) + 1) for _ in range(2))
        pieces, output = stream(tokenizer, ids, skip_special=skip_special, stop=[whole[a:b]])
        start, stop = first_completed(whole, [whole[a:b]]) or (len(whole), None)
        assert ("".join(pieces), output.stopped) == (whole[:start], stop)
    assert n_broken or not parts, "no stream was broken UTF-8: nothing was tested"


def test_stopped_is_set_by_the_token_that_completes_the_stop_string(smollm2):
    ids = smollm2.encode("one two three four")
    output = OutputText(smollm2, stop=["two th"])
    seen = [(output.push(i), output.stopped) for i in ids]
    assert [text for text, _ in seen if text] == ["one", " "]
    assert [stopped for _, stopped in seen].index("two th") == 2
    assert output.finish() == ""


def test_an_unfinished_character_at_the_end_is_dropped(smollm2):
    ids = smollm2.encode("ok 🙂")
    assert smollm2.token_text(ids[-1]) == "�" or len(ids) == 2
    family = smollm2.encode("ok 👩‍👩‍👧")
    pieces, _ = stream(smollm2, family[:-1])
    assert "".join(pieces) == "ok 👩‍👩‍"


def test_half_a_surrogate_at_the_end_counts_as_unfinished(smollm2):
    single = {smollm2.token_bytes(i): i for i in range(17, 252)}
    ids = [single[b"\xed"], single[b"\xa0"]]
    assert "".join(stream(smollm2, ids)[0]) == whole_text(smollm2, ids, True) == smollm2.decode(ids) == ""
    ids.append(single[b"\x80"])
    assert "".join(stream(smollm2, ids)[0]) == whole_text(smollm2, ids, True) == smollm2.decode(ids) == "\ufffd" * 3


def test_bytes_that_are_no_character_become_a_replacement_at_once(smollm2):
    lone = next(i for i in range(17, 252) if smollm2.token_bytes(i) == b"\x80")
    output = OutputText(smollm2)
    assert output.push(lone) == "�"


def test_special_tokens_are_shown_only_when_asked(smollm2):
    ids = smollm2.encode("a<|im_end|>b")
    assert "".join(stream(smollm2, ids)[0]) == "ab"
    assert "".join(stream(smollm2, ids, skip_special=False)[0]) == "a<|im_end|>b"
    assert "".join(stream(smollm2, ids, skip_special=False, stop=["<|im_end|>"])[0]) == "a"


def test_empty_stop_strings_are_ignored(smollm2):
    assert "".join(stream(smollm2, smollm2.encode("abc"), stop=["", ""])[0]) == "abc"
