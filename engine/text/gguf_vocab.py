"""A vocabulary out of a GGUF file's metadata (keys tokenizer.ggml.*, described in ggml's docs/gguf.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, normalizers

from engine.errors import ModelLoadError
from engine.text import pieces
from engine.text.merges import merges_by_score
from engine.text.pretokenizers import pre_tokenizer
from engine.text.vocabulary import END_NAMES, Vocabulary, end_ids, fim_tokens

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6
"""Values of tokenizer.ggml.token_type (llama.h); 1 is an ordinary token."""
_SPECIAL_TYPES = {_UNKNOWN, _CONTROL, _UNUSED}

_MOST_CHARACTERS = 1 << 23
"""Of all tokens together, four times what any vocabulary has: finding SentencePiece's merges takes a hundred bytes for each."""

_FIM_KEYS = {
    "prefix": "fim_pre_token_id",
    "suffix": "fim_suf_token_id",
    "middle": "fim_mid_token_id",
    "pad": "fim_pad_token_id",
    "repo": "fim_rep_token_id",
    "file": "fim_sep_token_id",
}


class _Metadata:
    """Typed reading of tokenizer.ggml.* keys; a value of another kind is a ModelLoadError that names the key."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def text(self, key: str, default: str) -> str:
        return self._get(key, str, default)

    def flag(self, key: str, default: bool) -> bool:
        return self._get(key, bool, default)

    def token_id(self, key: str, n_tokens: int, default: int | None = None) -> int | None:
        """A token id, or None where the key is absent or names no token (converters write -1 or 2**32 - 1 for none)."""
        value = self._get(key, int, default)
        return value if value is not None and 0 <= value < n_tokens else None

    def column(self, key: str, kind: type, length: int | None = None) -> list[Any] | None:
        """A list of values of one kind, `length` of them; None where the key is absent. Numbers come as a memoryview."""
        values = self._values.get(f"tokenizer.ggml.{key}")
        if not isinstance(values, memoryview):
            values = self._get(key, list, None)
        if values is None:
            return None
        if length is not None and len(values) != length:
            raise _damaged(key, f"has {len(values)} values for {length} tokens")
        if not all(map(kind.__instancecheck__, values)):
            raise _damaged(key, f"holds values other than {kind.__name__}")
        return list(values)

    def _get(self, key: str, kind: type, default: Any) -> Any:
        value = self._values.get(f"tokenizer.ggml.{key}")
        if value is None:
            return default
        if not isinstance(value, kind):
            raise _damaged(key, f"is {type(value).__name__}, not {kind.__name__}")
        return value


def _damaged(key: str, what: str) -> ModelLoadError:
    return ModelLoadError(f"The GGUF file's tokenizer.ggml.{key} {what}.", "Download the file again, or convert the model anew.")


def vocabulary_from_gguf(metadata: Mapping[str, Any]) -> Vocabulary:
    """Build the tokenizer that the metadata describes. Raises ModelLoadError naming a key that is missing, damaged or unknown."""
    meta = _Metadata(metadata)
    tokens: list[str] | None = meta.column("tokens", str)
    if not tokens:
        raise ModelLoadError(
            "The GGUF file has no vocabulary (tokenizer.ggml.tokens).", "Use a file that holds a whole language model."
        )
    n_tokens = len(tokens)
    if (n_characters := sum(map(len, tokens))) > _MOST_CHARACTERS:
        raise _damaged("tokens", f"has {n_characters} characters, more than {_MOST_CHARACTERS}")
    types: list[int] = meta.column("token_type", int, n_tokens) or [1] * n_tokens
    id_of = dict(zip(tokens, range(n_tokens), strict=True))

    special = {i: tokens[i] for i, kind in enumerate(types) if kind in _SPECIAL_TYPES}
    special |= {i: name for name in END_NAMES if (i := id_of.get(name)) is not None}
    special = {i: name for i, name in special.items() if name}
    plain = {i: tokens[i] for i, kind in enumerate(types) if kind == _USER_DEFINED and tokens[i] and i not in special}

    model = meta.text("model", "")
    if model == "gpt2":
        core, add_bos = _byte_level(meta, tokens, id_of)
        spell, space_prefix = pieces.byte_level, False
        bos, eos = meta.token_id("bos_token_id", n_tokens), meta.token_id("eos_token_id", n_tokens)
    elif model == "llama":
        core, add_bos = _sentencepiece(meta, tokens, types, id_of), True
        spell, space_prefix = pieces.sentencepiece, meta.flag("add_space_prefix", True)
        bos, eos = meta.token_id("bos_token_id", n_tokens, 1), meta.token_id("eos_token_id", n_tokens, 2)
    else:
        raise ModelLoadError(
            f"The GGUF file's tokenizer.ggml.model is {model!r}, which Pagewell cannot read.",
            "It reads gpt2 (byte-level BPE) and llama (SentencePiece BPE).",
        )
    # One batch: the core rebuilds its search automaton after each call.
    matched = sorted({i for i in special if types[i] != _UNUSED} | plain.keys())
    core.add_tokens([AddedToken(tokens[i], special=i in special, normalized=False) for i in matched])

    fim = fim_tokens(id_of.get, {role: i for role, key in _FIM_KEYS.items() if (i := meta.token_id(key, n_tokens)) is not None})
    eot, eom = meta.token_id("eot_token_id", n_tokens), meta.token_id("eom_token_id", n_tokens)
    return Vocabulary(
        core=core,
        n_tokens=n_tokens,
        spell=partial(_spell, tokens, plain, spell),
        special=special,
        bos_id=bos,
        eos_id=eos,
        end_ids=end_ids(id_of.get, lambda i: types[i] == _CONTROL, (eos, eot, eom), fim),
        prefix_ids=(bos,) if bos is not None and meta.flag("add_bos_token", add_bos) else (),
        suffix_ids=(eos,) if eos is not None and meta.flag("add_eos_token", False) else (),
        space_prefix=space_prefix,
        drops_first_space=space_prefix,
        fim=fim,
    )


def _spell(tokens: list[str], plain: Mapping[int, str], spell: Callable[[str], bytes], token_id: int) -> bytes:
    """Added tokens are written as they are; the rest in the vocabulary's own spelling."""
    if not 0 <= token_id < len(tokens):
        return b""
    return plain[token_id].encode() if token_id in plain else spell(tokens[token_id])


def _byte_level(meta: _Metadata, tokens: list[str], id_of: dict[str, int]) -> tuple[Tokenizer, bool]:
    """Byte-level BPE (GPT-2's): merges in order of rank, words cut as tokenizer.ggml.pre says. Also: is BOS the default?"""
    lines: list[str] | None = meta.column("merges", str)
    if lines is None:
        raise _damaged("merges", "is missing, but tokenizer.ggml.model is gpt2")
    rules = pre_tokenizer(meta.text("pre", "default"))
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    try:
        core = Tokenizer(models.BPE(vocab=id_of, merges=merges, ignore_merges=rules.whole_words))
    except Exception as error:  # the tokenizers package raises bare Exception
        raise _damaged("merges", f"does not fit the vocabulary ({error})") from error
    normalizer, core.pre_tokenizer = rules.build()
    if normalizer is not None:
        core.normalizer = normalizer
    return core, rules.add_bos


def _sentencepiece(meta: _Metadata, tokens: list[str], types: list[int], id_of: dict[str, int]) -> Tokenizer:
    """SentencePiece BPE: neighbours merge into the token of the best score; characters outside the vocabulary become bytes."""
    scores: list[float] | None = meta.column("scores", float, len(tokens))
    if scores is None:
        raise _damaged("scores", "is missing, but tokenizer.ggml.model is llama")
    ordinary = [i for i, kind in enumerate(types) if kind not in _SPECIAL_TYPES and kind not in (_USER_DEFINED, _BYTE)]
    merges = merges_by_score(tokens, scores, ordinary)
    unknown = meta.token_id("unknown_token_id", len(tokens), 0)
    unknown_name = tokens[unknown] if unknown is not None else None
    core = Tokenizer(models.BPE(vocab=id_of, merges=merges, byte_fallback=True, fuse_unk=True, unk_token=unknown_name))
    core.normalizer = normalizers.Replace(" ", "▁")
    return core
