"""Streamed markdown ends as the whole text would render, whatever the pieces, and never costs more than its tail."""

from __future__ import annotations

from html import escape
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ui.markdown_stream
from ui.markdown import render, top_level_blocks
from ui.markdown_stream import SEARCH_LIMIT, TAIL_LIMIT, MarkdownStream, Update

PIECES = [
    *("Some words. ", "**bold** ", "`code` ", "[a](https://e.example) ", "🙂 漢字 ", "x", "  "),
    *("\n", "\n\n", "\n\n\n", "\r\n", "\r", "\t"),
    *("# Title\n", "---\n", "===\n", "***\n", "- item\n", "* item\n", "1. one\n", "14. one\n", "-", "1."),
    *("  - nested\n", "    indented\n", "> quote\n", ">", "lazy\n"),
    *("```\n", "```python\n", "~~~\n", "````\n", "   ```\n", "```", "def f():\n    return 1\n"),
    *("| a | b |\n", "|---|---|\n", "| 1 | 2 |\n", "a | b\n", "<div>\n", "</div>\n", "[ref]: https://e.example\n", "\\", "&amp;"),
]
documents = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


@st.composite
def split_documents(draw: st.DrawFn) -> list[str]:
    text = draw(documents)
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=20)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


class Page:
    """What a browser would hold after applying the updates."""

    def __init__(self) -> None:
        self.closed, self.tail, self.code = "", "", ""

    def apply(self, update: Update) -> None:
        self.closed += update.closed
        if update.tail is not None:
            self.tail, self.code = update.tail, ""
        self.code += update.code

    @property
    def html(self) -> str:
        """Both parts, with the added code text at the end of the open code block."""
        if not self.code:
            return self.closed + self.tail
        assert self.tail.count("</code></pre></div>") == 1
        return self.closed + self.tail.replace("</code>", escape(self.code) + "</code>")


@settings(max_examples=400, deadline=None)
@given(split_documents())
def test_a_stream_ends_as_the_whole_text_renders(parts: list[str]) -> None:
    stream, page = MarkdownStream(), Page()
    whole = render("".join(parts))
    for part in parts:
        stream.push(part)
        page.apply(stream.take())
        assert whole.startswith(page.closed)
        assert page.html == page.closed + stream.tail
    page.apply(stream.finish())
    assert page.html == whole
    assert stream.tail == ""


@settings(max_examples=300, deadline=None)
@given(split_documents(), st.integers(1, 60))
def test_a_stream_whose_tail_grows_long_ends_alike(parts: list[str], limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ui.markdown_stream, "TAIL_LIMIT", limit)
        patch.setattr(ui.markdown_stream, "SEARCH_LIMIT", 4 * limit)
        stream, page = MarkdownStream(), Page()
        for part in parts:
            stream.push(part)
            page.apply(stream.take())
            assert page.html == page.closed + stream.tail
        page.apply(stream.finish())
    assert page.html == render("".join(parts))


@settings(max_examples=100, deadline=None)
@given(split_documents(), split_documents())
def test_a_stream_that_goes_on_from_kept_text_ends_alike(kept: list[str], parts: list[str]) -> None:
    stream, page = MarkdownStream("".join(kept)), Page()
    for part in parts:
        page.apply(stream.take())
        stream.push(part)
    page.apply(stream.finish())
    assert page.html == render("".join([*kept, *parts]))


def _stream(*parts: str) -> tuple[MarkdownStream, list[Update]]:
    stream = MarkdownStream()
    updates = []
    for part in parts:
        stream.push(part)
        updates.append(stream.take())
    return stream, updates


def test_a_block_is_closed_when_the_next_one_begins() -> None:
    _, (first, second) = _stream("one\n\n", "two\n")
    assert (first.closed, first.tail) == ("", "<p>one</p>\n")
    assert (second.closed, second.tail) == ("<p>one</p>\n", "<p>two</p>\n")


def test_an_open_code_block_grows_by_text_only() -> None:
    _, updates = _stream("```python\n", "a = '<", "b>'\nc", " = 2\n")
    assert "<pre><code></code></pre>" in updates[0].tail
    assert [(u.closed, u.tail, u.code) for u in updates[1:]] == [("", None, "a = '<"), ("", None, "b>'\nc"), ("", None, " = 2\n")]


def test_a_code_block_is_coloured_once_at_its_end() -> None:
    _, updates = _stream("```python\nreturn", " 1\n", "``", "`\n", "after")
    assert not updates[2], "what may become the end of the block is held back"
    assert '<span class="k">return</span>' in updates[3].closed
    assert updates[3].tail == ""
    assert updates[4].closed == ""


def test_code_in_an_indented_fence_loses_the_indent() -> None:
    stream, _ = _stream("  ```\n  a\n    b\n")
    assert "<code>a\n  b\n</code>" in stream.tail


def test_a_line_of_marks_alone_is_held_back() -> None:
    for marks in ("-", "- ", "##", "`", "**", "1", "1.", "2. ", "> ", "---"):
        _, updates = _stream("text\n\n", marks)
        assert not updates[1] or updates[1].tail == "<p>text</p>\n", marks


def test_the_head_of_a_table_is_held_back_until_its_second_line() -> None:
    _, updates = _stream("text\n\n", "| a | b ", "|\n", "|--", "-|---|\n")
    assert [u.tail for u in updates[:4]] == ["<p>text</p>\n", None, "", None]
    assert "<table>" in (updates[4].tail or "")


def test_the_head_of_a_table_after_a_code_block_is_held_back_too() -> None:
    _, updates = _stream("```\nx\n```\n", "\n| a", " |\n")
    assert not updates[1] and not updates[2]


def test_what_was_held_back_is_there_at_the_end() -> None:
    stream, _ = _stream("42")
    assert stream.finish().closed == "<p>42</p>\n"


def test_nothing_new_is_no_update() -> None:
    stream, _ = _stream("text\n\nmore")
    assert not stream.take()


def test_long_answers_are_parsed_block_by_block(monkeypatch) -> None:
    """Rendering work grows with the text, not with its square."""
    rendered = 0

    def counting(render_function):
        def count(text: str) -> str:
            nonlocal rendered
            rendered += len(text)
            return render_function(text)

        return count

    monkeypatch.setattr("ui.markdown_stream.render", counting(render))
    monkeypatch.setattr("ui.markdown_stream.render_live", counting(lambda text: text))
    stream, n = MarkdownStream(), 0
    for _ in range(300):
        for piece in ("A paragraph ", "of some words.\n\n", "```python\n", "x = 1\n" * 5, "```\n\n"):
            stream.push(piece)
            n += len(piece)
            stream.take()
    assert rendered < 4 * n


def test_a_tail_that_grows_long_is_plain_text_until_it_closes() -> None:
    item = "- an *item*\n"
    stream, updates = _stream(item, item * (TAIL_LIMIT // len(item)), item, "\nAfter the list.\n" + item * 800, "\nEnd.\n")
    assert "<em>" in updates[0].tail
    assert updates[1].tail.startswith('<div class="code">') and "- an *item*\n" in updates[1].tail
    assert (updates[2].tail, updates[2].code) == (None, item), "and grows by what is new only"
    assert updates[3].closed.startswith("<ul>") and updates[3].closed.endswith("<p>After the list.</p>\n")
    assert stream.tail == "<p>End.</p>\n" or "End." in stream.tail


def test_work_on_a_block_that_never_ends_grows_with_its_length(monkeypatch) -> None:
    work = 0

    def counting(function):
        def count(text: str):
            nonlocal work
            work += len(text)
            return function(text)

        return count

    monkeypatch.setattr("ui.markdown_stream.render_live", counting(lambda text: text))
    monkeypatch.setattr("ui.markdown_stream.top_level_blocks", counting(top_level_blocks))
    stream, item = MarkdownStream(), "- an item of a list, one line long\n" * 10
    for _ in range(4 * SEARCH_LIMIT // len(item)):
        stream.push(item)
        stream.take()
    within_limits = work
    for _ in range(4 * SEARCH_LIMIT // len(item)):
        stream.push(item)
        stream.take()
    assert work == within_limits
    assert work < 40 * SEARCH_LIMIT


def test_a_closed_tail_is_balanced_html() -> None:
    class Depth(HTMLParser):
        depth = 0

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.depth += tag not in ("br", "hr")

        def handle_endtag(self, tag: str) -> None:
            self.depth -= 1

    stream, updates = _stream("- a\n", "  ```\n", "  x\n", "> q\n", "\n# t\n", "```py\n", "y")
    for update in [*updates, stream.finish()]:
        parser = Depth()
        parser.feed(update.closed + (update.tail or ""))
        assert parser.depth == 0
