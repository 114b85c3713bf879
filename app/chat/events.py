"""Changes: what every open tab has to hear about conversations, numbered, so that a tab can join where it left off."""

from __future__ import annotations

import secrets
from collections import deque
from dataclasses import dataclass
from typing import Literal

from app.signal import Signal

KEPT = 500

Kind = Literal["listed", "exchanged", "continued", "ended", "deleted"]


@dataclass(slots=True, frozen=True)
class Change:
    seq: int
    kind: Kind
    conversation_id: int = 0
    message_ids: tuple[int, ...] = ()
    tab: str = ""
    """The tab that made the change and shows it already."""


class Changes:
    """The last few hundred changes of this run of the server. Cursors look like "run.number"."""

    def __init__(self) -> None:
        self._run = secrets.token_hex(4)
        self._seq = 0
        self._kept: deque[Change] = deque(maxlen=KEPT)
        self._signal = Signal()
        self.closed = False
        """The server is stopping: nobody should wait for more."""

    def close(self) -> None:
        self.closed = True
        self._signal.notify()

    @property
    def cursor(self) -> str:
        return self.cursor_at(self._seq)

    def cursor_at(self, seq: int) -> str:
        return f"{self._run}.{seq}"

    def after(self, cursor: str) -> list[Change] | None:
        """Changes that a tab at `cursor` has not heard; None if that cannot be known any more: it must load the page again."""
        run, _, number = cursor.partition(".")
        if run != self._run or not number.isdecimal():
            return None
        seq = int(number)
        oldest = self._kept[0].seq if self._kept else self._seq + 1
        if seq > self._seq or seq < oldest - 1:
            return None
        return [change for change in self._kept if change.seq > seq]

    async def wait(self, timeout_s: float) -> None:
        """Return at the next change or after the timeout. Look at `after` first, awaiting nothing in between."""
        await self._signal.wait(timeout_s)

    def listed(self) -> None:
        """The list of conversations looks different."""
        self._add("listed")

    def exchanged(self, conversation_id: int, question_id: int, answer_id: int, tab: str) -> None:
        """A question was sent and its answer begins."""
        self._add("exchanged", conversation_id, (question_id, answer_id), tab)

    def continued(self, conversation_id: int, message_id: int, tab: str) -> None:
        """An answer is being written on."""
        self._add("continued", conversation_id, (message_id,), tab)

    def ended(self, conversation_id: int) -> None:
        """An answer has ended."""
        self._add("ended", conversation_id)

    def deleted(self, conversation_id: int) -> None:
        self._add("deleted", conversation_id)

    def _add(self, kind: Kind, conversation_id: int = 0, message_ids: tuple[int, ...] = (), tab: str = "") -> None:
        self._seq += 1
        self._kept.append(Change(self._seq, kind, conversation_id, message_ids, tab))
        self._signal.notify()
