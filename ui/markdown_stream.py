"""Markdown that is still being written: closed blocks are rendered once, only the open tail again and again.

A top-level block is closed once a later one has begun in complete lines, or its code fence was ended; no later text can
change it. The joined closed blocks of a finished stream equal `render` of the whole text.

A tail that has grown long is shown as plain text, like an open code block, until it closes: to render it at every step
would take the square of its length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape

from markdown_it.token import Token

from ui.markdown import code_block, language_of, render, render_live, top_level_blocks

TAIL_LIMIT = 8_000
"""Characters of the open tail above which it is shown as plain text, and its end is looked for at each doubling only."""
SEARCH_LIMIT = 4 * TAIL_LIMIT
"""Characters of the open tail above which its end is not looked for any more: it is the end of the whole text."""

_FENCE = re.compile(r"( {0,3})(`{3,}|~{3,})([^\n]*)\n")
_HELD_BACK = re.compile(
    r"(?:\A\n*|(?<=\n\n))[ \t]*\|[^\n]*(?:\n[ \t|:\-]*)?\Z"  # the head of a table whose second line is not there yet
    r"|(?:\A|(?<=\n))(?:"
    r"[ \t>*+\-_#`~=]+"  # only marks: may become a rule, a list, a heading, a fence
    r"|[ \t]*\d{1,3}[.)]?[ \t]*"  # may become a numbered item
    r")\Z"
)
"""What would flicker if it were shown before the rest of it is there."""


@dataclass(slots=True, frozen=True)
class Update:
    """How the page changes: `closed` is appended, then the tail is replaced, or text is added to its open code block."""

    closed: str
    """HTML of blocks that are final."""
    tail: str | None
    """HTML of the open tail; None leaves it as it is."""
    code: str
    """Text (not HTML) to add at the end of the tail's code block."""

    def __bool__(self) -> bool:
        return bool(self.closed or self.tail is not None or self.code)


@dataclass(slots=True, frozen=True)
class _Fence:
    indent: int
    language: str
    body: int
    """Where the code begins in the open text."""
    end: re.Pattern[str]
    held_back: re.Pattern[str]

    @classmethod
    def opened_by(cls, match: re.Match[str]) -> _Fence:
        indent, marks, info = match.groups()
        mark, n = re.escape(marks[0]), len(marks)
        return cls(
            len(indent),
            language_of(info),
            match.end(),
            re.compile(rf"^ {{0,3}}{mark}{{{n},}}[ \t]*\n", re.MULTILINE),
            re.compile(rf"^ {{1,3}}\Z|^ {{0,3}}{mark}+[ \t]*\Z", re.MULTILINE),
        )


class MarkdownStream:
    """Push text as it comes; `take` gives what changed since the last time."""

    def __init__(self, text: str = "") -> None:
        self._open = ""
        """Source of the tail."""
        self._fence: _Fence | None = None
        """Set while the tail is one top-level code block without its end."""
        self._scanned = 0
        """Length of the complete lines of `_open` that were searched for closed blocks."""
        self._carriage_return = False
        self._shown = ""
        """The tail as the page has it: HTML,"""
        self._shown_code: str | None = None
        """or the text of the open code block, and its language."""
        self._shown_language = ""
        self.push(text)

    def push(self, text: str) -> None:
        if self._carriage_return:
            text = "\r" + text
        self._carriage_return = text.endswith("\r")
        text = text.removesuffix("\r").replace("\r\n", "\n").replace("\r", "\n")
        self._open += text

    def take(self) -> Update:
        closed = self._close_blocks()
        if self._fence is not None:
            return self._take_code(closed, self._code(), self._fence.language)
        if len(self._open) > TAIL_LIMIT:
            return self._take_code(closed, self._open, "")
        self._shown_code = None
        source = _HELD_BACK.sub("", self._open)
        tail = render_live(source) if source.strip() else ""
        if tail == self._shown and not closed:
            return Update("", None, "")
        self._shown = tail
        return Update(closed, tail, "")

    def _take_code(self, closed: str, code: str, language: str) -> Update:
        shown, same_block = self._shown_code, not closed and language == self._shown_language
        self._shown_code, self._shown_language = code, language
        if shown is not None and same_block and code.startswith(shown):
            return Update("", None, code[len(shown) :])
        return Update(closed, self.tail, "")

    def finish(self) -> Update:
        """The rest is closed as it stands; the tail is empty after this."""
        if self._carriage_return:
            self._open += "\n"
            self._carriage_return = False
        closed = self._close_blocks() + (render(self._open) if self._open.strip() else "")
        self._open, self._fence, self._shown, self._shown_code = "", None, "", None
        return Update(closed, "", "")

    @property
    def tail(self) -> str:
        """HTML of the tail as `take` last gave it, code included."""
        if self._shown_code is not None:
            return code_block(escape(self._shown_code), self._shown_language)
        return self._shown

    def _close_blocks(self) -> str:
        closed = ""
        while True:
            end = self._end_of_fence() if self._fence is not None else self._end_of_closed()
            if not end:
                return closed
            closed += render(self._open[:end])
            self._open = self._open[end:]
            self._fence, self._scanned = None, 0

    def _end_of_fence(self) -> int:
        assert self._fence is not None
        match = self._fence.end.search(self._open, max(self._fence.body, self._scanned))
        if match:
            return match.end()
        self._scanned = self._open.rfind("\n") + 1
        return 0

    def _end_of_closed(self) -> int:
        """Length of the closed blocks at the start of the open text. Notes an open fence that begins it."""
        complete = self._open.rfind("\n") + 1
        if complete == self._scanned or self._scanned > SEARCH_LIMIT or TAIL_LIMIT < complete < 2 * self._scanned:
            return 0
        self._scanned = complete
        blocks = top_level_blocks(self._open[:complete])
        if not blocks:
            return 0
        start = _offset(self._open, _lines(blocks[-1])[0])
        if len(blocks) > 1:
            return start
        if blocks[0].type == "fence" and (match := _FENCE.match(self._open, start)):
            fence = _Fence.opened_by(match)
            ended = fence.end.search(self._open, fence.body, complete)
            if ended:
                return ended.end()
            self._fence = fence
        return 0

    def _code(self) -> str:
        assert self._fence is not None
        code = self._fence.held_back.sub("", self._open[self._fence.body :])
        return re.sub(rf"^ {{1,{self._fence.indent}}}", "", code, flags=re.MULTILINE) if self._fence.indent else code


def _lines(token: Token) -> tuple[int, int]:
    assert token.map is not None
    return token.map[0], token.map[1]


def _offset(text: str, line: int) -> int:
    offset = 0
    for _ in range(line):
        offset = text.index("\n", offset) + 1
    return offset
