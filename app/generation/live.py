"""Live: one answer while it is written, as page operations with sequence numbers that any browser can join at any point."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from app.signal import Signal
from ui.markdown_stream import MarkdownStream


class Phase(enum.StrEnum):
    WAITING = "waiting"
    """Answers of other models have to end before this one has room."""
    LOADING = "loading"
    """The model is on its way into memory."""
    QUEUED = "queued"
    """The engine has not admitted the request yet."""
    READING = "reading"
    """The prompt is computed; no text yet."""
    WRITING = "writing"


@dataclass(slots=True, frozen=True)
class PageOps:
    """How a page that shows an earlier sequence number comes to `seq`: append closed blocks, then renew the tail."""

    seq: int
    closed: str
    """HTML to append; with `reset`, all closed blocks, in the place of what is there."""
    tail: str | None
    """HTML of the open tail; None leaves it."""
    code: str
    """Text (not HTML) to add to the tail's open code block."""
    phase: Phase
    progress: float
    """Of loading, 0 to 1."""
    reset: bool = False


class Live:
    """The text so far, its HTML, and who waits for more. All on the event loop's thread.

    The closed blocks stay in memory with the number at which each was closed, so no number is ever too old: what a page
    lacks is the blocks closed since, and the present tail. Only a number from another life needs a whole snapshot.
    """

    def __init__(self, generation_id: int, message_id: int, conversation_id: int, text: str = "", *, model: str = "") -> None:
        self.generation_id = generation_id
        self.model = model
        self.message_id = message_id
        self.conversation_id = conversation_id
        self.text = text
        self.phase = Phase.QUEUED
        self.progress = 0.0
        self.n_prompt = 0
        self.seq = 0
        self.ended = False
        self.has_news = Signal()
        """Text or phase that no tick has turned into operations yet."""
        self._changed = Signal()
        self._markdown = MarkdownStream(text)
        first = self._markdown.take()
        self._closed: list[tuple[int, str]] = [(0, first.closed)] if first.closed else []
        self._last = PageOps(0, first.closed, first.tail, "", self.phase, 0.0)
        self._dirty = False

    def push(self, text: str) -> None:
        """New text of the answer; pages see it after the next tick."""
        if text:
            self.text += text
            self._markdown.push(text)
            self._news()

    def enter(self, phase: Phase, progress: float = 0.0) -> None:
        if (phase, progress) != (self.phase, self.progress):
            self.phase, self.progress = phase, progress
            self._news()

    def tick(self) -> None:
        """Turn what came since the last tick into one numbered set of operations."""
        if not self._dirty:
            return
        self._dirty = False
        update = self._markdown.take()
        if not update and (self.phase, self.progress) == (self._last.phase, self._last.progress):
            return
        self.seq += 1
        if update.closed:
            self._closed.append((self.seq, update.closed))
        self._last = PageOps(self.seq, update.closed, update.tail, update.code, self.phase, self.progress)
        self._changed.notify()

    def end(self) -> None:
        """Nothing more comes; whoever waits is woken to show the final message."""
        self.ended = True
        self._changed.notify()

    def since(self, after: int) -> PageOps | None:
        """What a page at number `after` lacks; None if nothing. A number that this answer never gave gets a snapshot."""
        if after == self.seq:
            return None
        if 0 <= after == self.seq - 1:
            return self._last
        if 0 <= after < self.seq:
            closed = "".join(html for seq, html in self._closed if seq > after)
            return PageOps(self.seq, closed, self._markdown.tail, "", self.phase, self.progress)
        return self.snapshot()

    def snapshot(self) -> PageOps:
        """The whole answer so far and its number, taken in one instant."""
        closed = "".join(html for _, html in self._closed)
        return PageOps(self.seq, closed, self._markdown.tail, "", self.phase, self.progress, reset=True)

    async def beyond(self, after: int) -> None:
        """Return once there is something after `after`, or the answer has ended."""
        while self.seq == after and not self.ended:
            await self._changed.wait()

    def _news(self) -> None:
        self._dirty = True
        self.has_news.notify()

    @property
    def is_dirty(self) -> bool:
        return self._dirty
