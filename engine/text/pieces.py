"""Pieces: the bytes that each token id stands for, worked out when first asked for.

A large vocabulary has a quarter of a million tokens, an answer uses a few hundred: a table filled on demand costs
nothing at start and a dictionary lookup per token afterwards.
"""

from __future__ import annotations

from collections.abc import Callable


class Pieces(dict[int, bytes]):
    """Token id -> bytes. `spell` gives the bytes of an id; `texts` is the same as text."""

    def __init__(self, spell: Callable[[int], bytes]) -> None:
        super().__init__()
        self._spell = spell
        self.texts = _Texts(self)

    def __missing__(self, token_id: int) -> bytes:
        piece = self[token_id] = self._spell(token_id)
        return piece


class _Texts(dict[int, str | None]):
    """Token id -> its text, or None where the bytes are no whole characters by themselves."""

    def __init__(self, pieces: Pieces) -> None:
        super().__init__()
        self._pieces = pieces

    def __missing__(self, token_id: int) -> str | None:
        try:
            text = self._pieces[token_id].decode()
        except UnicodeDecodeError:
            text = None
        self[token_id] = text
        return text


def _byte_alphabet() -> dict[str, int]:
    """The printable characters that stand for bytes in byte-level vocabularies (GPT-2's encoder.json)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def byte_level(token: str) -> bytes:
    """Bytes of a byte-level token such as "Ġthe"; one written outside that alphabet stands for itself."""
    try:
        return bytes(map(_BYTE_OF.__getitem__, token))
    except KeyError:
        return token.encode()


def sentencepiece(token: str) -> bytes:
    """Bytes of a SentencePiece token: "▁the", or one byte such as "<0xE2>"."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes((int(token[3:5], 16),))
        except ValueError:
            pass
    return token.replace("▁", " ").encode()
