"""Changes: what every open tab has to hear about conversations, numbered, so that a tab can join where it left off."""

from __future__ import annotations

import re
import secrets
from collections import deque
from dataclasses import dataclass
from typing import Literal

from app.signal import Signal

KEPT = 500
_CURSOR = re.compile(r"([0-9a-f]{8})\.([0-9]{1,15})(?:\.([0-9]{1,15})\.([0-9]{1,15}))?")

Kind = Literal["listed", "exchanged", "continued", "ended", "deleted"]


@dataclass(slots=True, frozen=True)
class Cursor:
    """What a tab has seen: changes up to `change` of this run of the server, and an answer up to `seq`."""

    run: str
    change: int
    generation_id: int = 0
    """The answer that the tab shows as being written; 0 for none."""
    seq: int = 0

    @classmethod
    def parse(cls, text: str) -> Cursor:
        match = _CURSOR.fullmatch(text)
        if match is None:
            return cls("", 0)
        run, *numbers = match.groups()
        return cls(run, *(int(number or 0) for number in numbers))

    def __str__(self) -> str:
        answer = f".{self.generation_id}.{self.seq}" if self.generation_id else ""
        return f"{self.run}.{self.change}{answer}"


@dataclass(slots=True, frozen=True)
class Change:
    seq: int
    kind: Kind
    conversation_id: int = 0
    message_ids: tuple[int, ...] = ()


class Changes:
    """The last few hundred changes of this run of the server."""

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
    def cursor(self) -> Cursor:
        """Of a tab that has seen every change."""
        return Cursor(self._run, self._seq)

    def after(self, cursor: Cursor) -> list[Change] | None:
        """Changes that a tab has not heard; None if that cannot be known any more: it must load the page again."""
        oldest = self._kept[0].seq if self._kept else self._seq + 1
        if cursor.run != self._run or not oldest - 1 <= cursor.change <= self._seq:
            return None
        return [change for change in self._kept if change.seq > cursor.change]

    async def beyond(self, change: int, timeout_s: float) -> None:
        """Return once there is a change after this one, or at the end, or after the timeout."""
        if self._seq == change and not self.closed:
            await self._signal.wait(timeout_s)

    def listed(self) -> None:
        """The list of conversations looks different."""
        self._add("listed")

    def exchanged(self, conversation_id: int, question_id: int, answer_id: int) -> None:
        """A question was sent and its answer begins."""
        self._add("exchanged", conversation_id, (question_id, answer_id))

    def continued(self, conversation_id: int, message_id: int) -> None:
        """An answer is being written on."""
        self._add("continued", conversation_id, (message_id,))

    def ended(self, conversation_id: int) -> None:
        """An answer has ended."""
        self._add("ended", conversation_id)

    def deleted(self, conversation_id: int) -> None:
        self._add("deleted", conversation_id)

    def _add(self, kind: Kind, conversation_id: int = 0, message_ids: tuple[int, ...] = ()) -> None:
        self._seq += 1
        self._kept.append(Change(self._seq, kind, conversation_id, message_ids))
        self._signal.notify()
