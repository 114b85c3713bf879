"""OutputText: an answer's text as it may be shown, detokenised and cut at stop strings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from engine.text.detokenizer import Detokenizer
from engine.text.stops import StopStrings

if TYPE_CHECKING:
    from engine.text.tokenizer import Tokenizer


class OutputText:
    """Feeds on committed token ids; the joined results of `push` and `finish` are the whole text (law g)."""

    __slots__ = ("_detokenizer", "_stops")

    def __init__(
        self, tokenizer: Tokenizer, *, stop: Iterable[str] = (), include_stop: bool = False, skip_special: bool = True
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special)
        stops = tuple(stop)
        self._stops = StopStrings(stops, include=include_stop) if any(stops) else None

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text; the caller ends the answer with the token that was just pushed."""
        return self._stops.matched if self._stops is not None else None

    def push(self, token_id: int, *, may_stop: bool = True) -> str:
        """Text that is safe to emit after this token; "" while characters or a possible stop string are held back.

        Text of tokens that may not stop (the first min_tokens) is no part of any stop string.
        """
        text = self._detokenizer.push(token_id)
        return self._stops.push(text) if text and may_stop and self._stops is not None else text

    def finish(self) -> str:
        """End of the answer: release what was held back for a stop string; drop an unfinished character."""
        return self._stops.flush() if self._stops is not None else ""
