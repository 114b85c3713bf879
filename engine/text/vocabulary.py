"""Vocabulary: what a tokenizer is made of, and what token names mean across model families."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import tokenizers

END_NAMES = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<turn|>",
    "<end_of_utterance>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
)
"""Names of tokens that end a turn, whatever the checkpoint says of them. They are never text."""

END_NAMES_IF_CONTROL = ("</s>", "<eos>", "[EOS]")
"""Names that end a turn only where the checkpoint calls them control tokens: in Gemma's vocabulary </s> is HTML."""

_FIM_NAMES = {
    "prefix": ("<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "<｜fim▁begin｜>", "▁<PRE>", "<PRE>", "<|code_prefix|>"),
    "suffix": ("<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "<｜fim▁hole｜>", "▁<SUF>", "<SUF>", "<|code_suffix|>"),
    "middle": ("<|fim_middle|>", "<fim_middle>", "<fim-middle>", "<｜fim▁end｜>", "▁<MID>", "<MID>", "<|code_middle|>"),
    "pad": ("<|fim_pad|>", "<fim_pad>", "<fim-pad>"),
    "repo": ("<|repo_name|>", "<|fim_repo|>", "<reponame>", "<repo_name>"),
    "file": ("<|file_sep|>", "<file_sep>"),
}


@dataclass(slots=True, frozen=True)
class FimTokens:
    """Token ids for fill-in-the-middle prompts. The last three are None where the vocabulary lacks them."""

    prefix: int
    suffix: int
    middle: int
    pad: int | None = None
    repo: int | None = None
    """Stands before a repository's name."""
    file: int | None = None
    """Stands before each further file of the repository."""

    @property
    def end_ids(self) -> frozenset[int]:
        """A completion that goes on to padding, another file or another repository is over."""
        return frozenset(i for i in (self.pad, self.repo, self.file) if i is not None)


@dataclass(slots=True)
class Vocabulary:
    """A tokenizer's parts: `core` turns text into ids, the rest says what ids mean."""

    core: tokenizers.Tokenizer
    n_tokens: int
    spell: Callable[[int], bytes]
    """Bytes of a token id that is not special; b"" for an id without a token."""
    special: Mapping[int, str]
    """Control tokens and their names."""
    bos_id: int | None
    eos_id: int | None
    end_ids: frozenset[int]
    prefix_ids: tuple[int, ...] = ()
    """What the model expects before every text."""
    suffix_ids: tuple[int, ...] = ()
    space_prefix: bool = False
    """SentencePiece's dummy prefix, where the core does not add it: a text not begun by a special token gets a space."""
    drops_first_space: bool = False
    """Encoding put a space before the text, so decoding takes it away."""
    fim: FimTokens | None = None
    _special_at_start: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        names = sorted(self.special.values(), key=len, reverse=True) if self.space_prefix else ()
        self._special_at_start = re.compile("|".join(map(re.escape, names)) or r"(?!)")

    def begins_special(self, text: str) -> bool:
        """Does `text` begin with a special token's name? (Only known where there is a space prefix.)"""
        return self._special_at_start.match(text) is not None


def fim_tokens(id_of: Callable[[str], int | None], named: Mapping[str, int] | None = None) -> FimTokens | None:
    """Fill-in-the-middle tokens by their usual names; `named` (role -> id) is what the checkpoint itself says."""
    found = dict(named or {})
    for role, names in _FIM_NAMES.items():
        if role not in found and (i := next(filter(None, map(id_of, names)), None)) is not None:
            found[role] = i
    return FimTokens(**found) if {"prefix", "suffix", "middle"} <= found.keys() else None


def end_ids(
    id_of: Callable[[str], int | None],
    is_control: Callable[[int], bool],
    stated: Iterable[int | None],
    fim: FimTokens | None,
) -> frozenset[int]:
    """Ids that end an answer: those the checkpoint states, and those whose name says so, as llama.cpp and vLLM treat them."""
    by_name = {name: i for name in END_NAMES if (i := id_of(name)) is not None}
    if "<|return|>" in by_name and "<|call|>" in by_name:
        by_name.pop("<|end|>", None)  # in the harmony format <|end|> only ends a message; the answer goes on
    found = {*by_name.values(), *(i for i in stated if i is not None)}
    found |= {i for name in END_NAMES_IF_CONTROL if (i := id_of(name)) is not None and is_control(i)}
    return frozenset(found | (fim.end_ids if fim else frozenset()))
