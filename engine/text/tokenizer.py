"""Tokenizer: text to token ids and back, the same whether the vocabulary came from a GGUF file or a folder."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from engine.errors import InvalidRequest
from engine.text.detokenizer import Detokenizer
from engine.text.folder_vocab import vocabulary_from_folder
from engine.text.gguf_vocab import vocabulary_from_gguf
from engine.text.lengths import Lengths
from engine.text.panics import is_panic
from engine.text.pieces import Pieces
from engine.text.vocabulary import FimTokens, Vocabulary

# A batch of one text gains nothing from the package's own threads, which make it warn of every fork.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class Tokenizer:
    """A vocabulary with its rules. Safe to use from several threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._core: tokenizers.Tokenizer = vocabulary.core
        # The core keeps "are special tokens parsed?" as a setting of its own, and changing it during an encode fails.
        self._lock = threading.Lock()
        self._lengths = Lengths(vocabulary.core)
        self.vocab_size = vocabulary.n_tokens
        """Token ids are below this. The model's embedding may have more rows, which mean nothing."""
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.end_ids = vocabulary.end_ids
        """Every id that ends an answer."""
        self.special_ids = frozenset(vocabulary.special)
        """Control tokens: they carry no text."""
        self.add_bos = vocabulary.bos_id is not None and vocabulary.bos_id in vocabulary.prefix_ids
        self.fim: FimTokens | None = vocabulary.fim
        """Fill-in-the-middle tokens, where the vocabulary has them."""
        self.pieces = Pieces(self._piece)
        """Token id -> bytes, b"" for special tokens."""
        self.pieces_with_special = Pieces(lambda token_id: self._piece(token_id) or self.token_text(token_id).encode())

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """From a GGUF file's `tokenizer.ggml.*` metadata. Raises ModelLoadError naming the key that is wrong or unknown."""
        return cls(vocabulary_from_gguf(metadata))

    @classmethod
    def from_folder(cls, path: Path) -> Tokenizer:
        """From tokenizer.json and its companions in a folder of Hugging Face layout. Raises ModelLoadError naming the file."""
        return cls(vocabulary_from_folder(path))

    def at_least(self, text: str) -> int:
        """The fewest tokens that `text` can become, told from its length; 0 where nothing can be said."""
        return self._lengths.at_least(text)

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of `text`.

        `add_special` puts the model's own beginning (usually BOS) before it, unless the text already begins with it.
        `parse_special` off makes a special token's name in the text mere characters. Raises InvalidRequest where the tokenizer
        of a damaged model fails.
        """
        if self._vocabulary.space_prefix and text and not (parse_special and self._vocabulary.begins_special(text)):
            text = " " + text
        with self._lock:
            if self._core.encode_special_tokens == parse_special:
                self._core.encode_special_tokens = not parse_special
            # As a batch of one: it lets other threads run meanwhile, where a single encode holds Python's lock for seconds.
            try:
                (encoding,) = self._core.encode_batch_fast([text], add_special_tokens=False)
            except (UnicodeEncodeError, TypeError):
                (encoding,) = self._core.encode_batch_fast([_without_surrogates(text)], add_special_tokens=False)
            except BaseException as error:
                if not is_panic(error):
                    raise
                what = f"This model's tokenizer fails on the text: {error}."
                raise InvalidRequest("prompt", what, "Take the model from another source.") from error
        ids = encoding.ids
        if not add_special:
            return ids
        prefix, suffix = list(self._vocabulary.prefix_ids), list(self._vocabulary.suffix_ids)
        if prefix and ids[: len(prefix)] == prefix:
            prefix = []
        return prefix + ids + suffix

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of whole `ids`, the inverse of `encode`. An unfinished character at the end is dropped."""
        detokenizer = Detokenizer(self, skip_special)
        text = "".join(map(detokenizer.push, ids))
        return text.removeprefix(" ") if self._vocabulary.drops_first_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of text that this token stands for, perhaps part of a character; b"" for special tokens."""
        return self.pieces[token_id]

    def token_text(self, token_id: int) -> str:
        """The token for people: its text (U+FFFD for parts of characters), or a special token's name."""
        special = self._vocabulary.special.get(token_id)
        return special if special is not None else self.pieces[token_id].decode(errors="replace")

    def _piece(self, token_id: int) -> bytes:
        return b"" if token_id in self._vocabulary.special else self._vocabulary.spell(token_id)


def _without_surrogates(text: str) -> str:
    """JSON can name half a surrogate pair, which no UTF-8 text may hold: pairs are joined, halves become U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
