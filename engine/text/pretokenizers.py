"""How byte-level vocabularies cut text into words before merging, by the name a GGUF file gives in tokenizer.ggml.pre.

The expressions are those of the models' own tokenizer.json files; the names are llama.cpp's (src/llama-vocab.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from engine.errors import ModelLoadError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SYMBOLS_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _SYMBOLS_AND_SPACES
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _SYMBOLS_AND_SPACES
_QWEN35 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORD = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s|"
_CASED_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = _CASED_WORD % ("", "") + r"\p{N}" + _CASED_REST
_GPT4O = _CASED_WORD % (_CONTRACTIONS + "?", _CONTRACTIONS + "?") + r"\p{N}{1,3}" + _CASED_REST
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK_LETTERS = (  # the model's tokenizer.json lists cased letters range by range, without these scripts
    r"\s?[[\p{Lu}\p{Ll}\p{Lt}]&&[^"
    "\u0560-\u0588\u10c7-\u10ff\u1c80-\u1c88\u2d00-\u2d2d\ua790-\ua7fa\uab30-\uab68"
    "\U00010570-\U000105bc\U00016e40-\U00016e7f\U0001d400-\U0001dfff]]+"
)
_CJK = r"[一-龥ࠀ-一가-퟿]+"


@dataclass(slots=True, frozen=True)
class PreTokenizer:
    """Expressions applied one after the other: each cuts what the earlier ones left, matches standing alone."""

    splits: tuple[str, ...]
    nfc: bool = False
    """The model's tokenizer composes characters first (Unicode NFC)."""
    whole_words: bool = False
    """A word that is in the vocabulary is one token, whatever the merges say."""
    add_bos: bool = False
    """BOS is expected where the file does not say."""

    def build(self) -> tuple[normalizers.Normalizer | None, pre_tokenizers.PreTokenizer]:
        """The normalizer and pre-tokenizer of the tokenizers package."""
        cuts = [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in self.splits]
        last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return normalizers.NFC() if self.nfc else None, pre_tokenizers.Sequence([*cuts, last])


_gpt2 = PreTokenizer((_GPT2,))
_digits_apart = PreTokenizer((r"\p{N}", _GPT2))
_llama3 = PreTokenizer((_LLAMA3,), whole_words=True, add_bos=True)
_llama3_plain = PreTokenizer((_LLAMA3,))
_qwen2 = PreTokenizer((_QWEN2,), nfc=True)
_gpt4o = PreTokenizer((_GPT4O,))

_BY_NAME: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "gigachat", "mellum"), _gpt2),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"), _digits_apart
    ),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"), _llama3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), _llama3_plain),
    **dict.fromkeys(("qwen2", "megrez"), _qwen2),
    **dict.fromkeys(("deepseek-r1-qwen", "stablelm2", "hunyuan", "solar-open"), PreTokenizer((_QWEN2,))),
    "qwen35": PreTokenizer((_QWEN35,), nfc=True),
    "tekken": PreTokenizer((_TEKKEN,), whole_words=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), _gpt4o),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            _DEEPSEEK_LETTERS,
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            _CJK,
            r"\p{N}",
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    "deepseek-v3": PreTokenizer((r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3)),
}


def pre_tokenizer(name: str) -> PreTokenizer:
    """The rules behind a tokenizer.ggml.pre name. Raises ModelLoadError for a name without rules: guessing would cut wrong."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise ModelLoadError(
            f"The GGUF file's tokenizer.ggml.pre is {name!r}, a way of cutting text into words that Pagewell does not know.",
            f"Known: {', '.join(sorted(_BY_NAME))}. A folder with tokenizer.json carries its own rules and works.",
        ) from None
