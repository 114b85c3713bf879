"""Which texts can never fit a window, told from their length alone: tokenising tens of megabytes takes minutes."""

from __future__ import annotations

import json
from typing import Any

import tokenizers

from engine.text.pieces import byte_level

_KEEPS_EVERYTHING = {"Sequence", "Split", "Digits", "ByteLevel", "Punctuation"}
_NFC_SHRINKS = 3
"""Composing turns at most three characters into one (Hangul's letters, a letter with two marks)."""


class Lengths:
    """Lower bounds on the number of tokens of a text.

    They hold for BPE vocabularies with tokens for bytes, so that no run of characters is dropped or fused into one unknown
    token, and whose rules before the merges drop nothing. For others nothing is claimed.
    """

    def __init__(self, core: tokenizers.Tokenizer) -> None:
        vocab = core.get_vocab()
        self._longest = _longest(core, vocab)
        self._dropped = _dropped(vocab)

    def at_least(self, text: str) -> int:
        """The fewest tokens that this text can become; 0 where nothing can be said."""
        if not self._longest:
            return 0
        kept = len(text) - sum(map(text.count, self._dropped))
        return kept // (self._longest if text.isascii() else self._longest * _NFC_SHRINKS)


def _longest(core: tokenizers.Tokenizer, vocab: dict[str, int]) -> int:
    """Bytes of the longest token, which stands for no more characters; 0 where a token may stand for any number."""
    if not isinstance(core.model, tokenizers.models.BPE) or core.truncation is not None or _CONTINUED - _bytes(vocab):
        return 0
    if any(token.lstrip or token.rstrip for token in core.get_added_tokens_decoder().values()):
        return 0  # such a token takes any number of spaces around it
    normalizer, cuts = _state(core.normalizer), _state(core.pre_tokenizer)
    if normalizer not in ({}, {"type": "NFC"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}):
        return 0
    if not all(_keeps(cut) for cut in (cuts.get("pretokenizers", [cuts]) if cuts else [])):
        return 0
    return max(len(token.encode()) for token in vocab)


_CONTINUED = frozenset(range(0x80, 0xC0))
"""Each character beyond ASCII has such a byte in UTF-8, so it leaves a token even where its first byte has none."""


def _bytes(vocab: dict[str, int]) -> set[int]:
    """The bytes that have tokens of their own, in either spelling."""
    spelt = {value[0] for token in vocab if len(token) == 1 and len(value := byte_level(token)) == 1}
    return spelt | {byte for byte in range(256) if f"<0x{byte:02X}>" in vocab}


def _dropped(vocab: dict[str, int]) -> tuple[str, ...]:
    """Characters of ASCII without a token; SmolLM2 has some."""
    return tuple(chr(byte) for byte in sorted(set(range(128)) - _bytes(vocab)))


def _state(part: Any) -> dict[str, Any]:
    return {} if part is None else json.loads(part.__getstate__())


def _keeps(cut: dict[str, Any]) -> bool:
    return cut["type"] in _KEEPS_EVERYTHING and cut.get("behavior") != "Removed"
