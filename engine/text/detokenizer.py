"""Detokenizer: one answer's token ids back to text, whole characters only."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.text.tokenizer import Tokenizer

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Text of a token stream, one `push` per token; runs on the engine thread.

    A character whose bytes are spread over tokens appears with the token that completes it. Bytes that can never
    become a character turn into U+FFFD, as in any decoder; a character that is merely unfinished when the stream ends
    is dropped.
    """

    __slots__ = ("_decoder", "_pieces", "_texts", "_unfinished")

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._pieces = tokenizer.pieces if skip_special else tokenizer.pieces_with_special
        self._texts = self._pieces.texts
        self._decoder = _Utf8Decoder(errors="replace")
        self._unfinished = False

    def push(self, token_id: int) -> str:
        """Text that `token_id` completes; "" while a character is unfinished and for special tokens that are skipped."""
        if not self._unfinished and (text := self._texts[token_id]) is not None:
            return text
        text = self._decoder.decode(self._pieces[token_id])
        self._unfinished = self._decoder.getstate()[0] != b""
        return text
