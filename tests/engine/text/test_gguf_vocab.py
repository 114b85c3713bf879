"""Vocabularies in GGUF metadata: the rules of each pre-tokenizer, what files leave out, what damaged ones say."""

from __future__ import annotations

from array import array

import pytest
from tokenizers import Regex, Tokenizer, pre_tokenizers

from engine.errors import ModelLoadError
from engine.text import tokenizer as text_tokenizer
from engine.text.pretokenizers import pre_tokenizer
from tests.engine.text import corpus


def words(name: str, text: str) -> list[str]:
    """How the rules of this name cut an ASCII text."""
    _, cutter = pre_tokenizer(name).build()
    return [word.replace("Ġ", " ").replace("Ċ", "\n") for word, _ in cutter.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-2", ["It", "'s", " 12345", " tests", "...", " X", "'", "S", "\n", "\n", "end"]),
        ("smollm", ["It", "'s", " ", "1", "2", "3", "4", "5", " tests", "...", " X", "'", "S", "\n", "\n", "end"]),
        ("llama-bpe", ["It", "'s", " ", "123", "45", " tests", "...", " X", "'S", "\n\n", "end"]),
        ("qwen2", ["It", "'s", " ", "1", "2", "3", "4", "5", " tests", "...", " X", "'S", "\n\n", "end"]),
        ("tekken", ["It", "'s", " ", "1", "2", "3", "4", "5", " tests", "...", " X", "'S", "\n\n", "end"]),
        ("gpt-4o", ["It's", " ", "123", "45", " tests", "...", " X'S", "\n\n", "end"]),
        ("deepseek-v3", ["It", "'s", " ", "123", "45", " tests", "...", " X", "'S", "\n\n", "end"]),
        ("deepseek-coder", ["It", "'", "s", " ", "1", "2", "3", "4", "5", " tests", "...", " X", "'", "S", "\n", "\n", "end"]),
        ("deepseek-llm", ["It", "'", "s", " ", "1", "2", "3", "4", "5", " tests", "...", " X", "'", "S", "\n", "\n", "end"]),
        ("default", ["It", "'", "s", " ", "123", "45", " tests", "...", " X", "'", "S", "\n", "\n", "end"]),
    ],
)
def test_words_are_cut_by_the_rules_of_the_name(name, expected):
    assert words(name, "It's 12345 tests... X'S\n\nend") == expected


@pytest.mark.parametrize(
    "name",
    [
        *("llama-bpe", "tekken", "qwen2", "smaug-bpe", "dbrx", "gpt-4o", "command-r", "chatglm-bpe", "glm4", "refact"),
        *("starcoder", "olmo", "exaone4", "stablelm2", "falcon3"),
    ],
)
def test_names_that_files_of_dense_families_have_are_known(name):
    """Llama 3, Mistral, Qwen, OLMo 2 and Phi 4 (dbrx), Command R, GLM 4, Granite (refact), StarCoder 2 and others."""
    assert pre_tokenizer(name).splits


def test_rules_that_transformers_knows_too_cut_alike():
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    compared = 0
    for name, split in GGUF_PRE_TOKENIZER_SPLITS.items():
        try:
            _, ours = pre_tokenizer(name).build()
        except ModelLoadError:
            continue
        theirs = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(split), behavior="isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        )
        for text in corpus.ALL:
            assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text), (name, text)
        compared += 1
    assert compared >= 12


def test_gpt2_rules_are_those_of_the_tokenizers_package():
    _, ours = pre_tokenizer("gpt-2").build()
    theirs = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    for text in corpus.ALL:
        assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text)


def test_an_unknown_name_is_refused_by_name():
    with pytest.raises(ModelLoadError, match=r"tokenizer\.ggml\.pre is 'brand-new'.*\n.*smollm"):
        text_tokenizer.Tokenizer.from_gguf(byte_level(pre="brand-new"))


def byte_level(**changes) -> dict:
    """A tiny byte-level vocabulary as a GGUF file has it; `changes` replace keys, None removes one."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, "he", "hell", "ll", "hello", "<|endoftext|>", "<think>", "<|im_end|>", "[PAD263]"]
    keys = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [1] * (len(tokens) - 4) + [3, 4, 1, 5],
        "merges": ["h e", "l l", "he ll", "hell o"],
        "bos_token_id": tokens.index("<|endoftext|>"),
        "eos_token_id": tokens.index("<|endoftext|>"),
    } | changes
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}


def test_a_turn_ending_name_is_special_though_the_file_calls_it_ordinary():
    tokenizer = text_tokenizer.Tokenizer.from_gguf(byte_level())
    *_, end, think, im_end, pad = range(tokenizer.vocab_size)
    assert tokenizer.encode("hello<|im_end|>")[-1] == im_end
    assert tokenizer.end_ids == {end, im_end}
    assert tokenizer.special_ids == {end, im_end, pad}
    assert tokenizer.decode(tokenizer.encode("hello <think>x</think><|im_end|>")) == "hello <think>x</think>"
    assert pad not in tokenizer.encode("[PAD263]"), "unused ids have no spelling"
    assert tokenizer.token_bytes(think) == b"<think>"


def test_flags_of_the_file_decide_about_bos_and_eos():
    bos = text_tokenizer.Tokenizer.from_gguf(byte_level()).bos_id
    encode = lambda **changes: text_tokenizer.Tokenizer.from_gguf(byte_level(**changes)).encode("he")  # noqa: E731
    assert bos not in encode()
    assert encode(add_bos_token=True) == [bos, *encode()]
    assert encode(pre="llama-bpe")[0] == bos, "llama 3 files may lack the flag"
    assert bos not in encode(pre="llama-bpe", add_bos_token=False)
    assert encode(add_eos_token=True) == [*encode(), bos]


def test_whole_words_win_over_merges_where_the_rules_say_so():
    merges = ["h e", "l l"]
    merged, whole = (text_tokenizer.Tokenizer.from_gguf(byte_level(merges=merges, pre=pre)) for pre in ("gpt-2", "tekken"))
    assert len(merged.encode("hello", add_special=False)) == 3
    assert len(whole.encode("hello", add_special=False)) == 1


def test_a_file_without_types_still_ends_answers():
    tokenizer = text_tokenizer.Tokenizer.from_gguf(byte_level(token_type=None))
    assert {tokenizer.token_text(i) for i in tokenizer.end_ids} == {"<|endoftext|>", "<|im_end|>"}


@pytest.mark.parametrize("absent", [-1, 2**32 - 1, 10**6])
def test_an_id_outside_the_vocabulary_means_none(absent):
    tokenizer = text_tokenizer.Tokenizer.from_gguf(byte_level(bos_token_id=absent, add_bos_token=True, eot_token_id=absent))
    assert tokenizer.bos_id is None
    assert not tokenizer.add_bos


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": None}, "tokenizer.ggml.tokens"),
        ({"tokens": []}, "tokenizer.ggml.tokens"),
        ({"tokens": ["a", 1]}, "tokenizer.ggml.tokens holds values other than str"),
        ({"token_type": [1, 2]}, "tokenizer.ggml.token_type has 2 values for 264 tokens"),
        ({"merges": None}, "tokenizer.ggml.merges is missing"),
        ({"merges": ["h zz"]}, "tokenizer.ggml.merges does not fit the vocabulary"),
        ({"merges": "h e"}, "tokenizer.ggml.merges is str, not list"),
        ({"model": "t5"}, "tokenizer.ggml.model is 't5'"),
        ({"model": None}, "tokenizer.ggml.model is ''"),
        ({"model": "llama"}, "tokenizer.ggml.scores is missing"),
        ({"bos_token_id": "x"}, "tokenizer.ggml.bos_token_id is str, not int"),
    ],
)
def test_a_damaged_vocabulary_is_refused_by_the_key(changes, message):
    with pytest.raises(ModelLoadError) as caught:
        text_tokenizer.Tokenizer.from_gguf(byte_level(**changes))
    assert message in caught.value.message
    assert caught.value.hint


def test_the_tokenizers_package_still_offers_what_is_built_on():
    core = Tokenizer.from_str('{"version":"1.0","model":{"type":"BPE","vocab":{"a":0},"merges":[]},"added_tokens":[]}')
    core.encode_special_tokens = True
    assert core.encode_special_tokens is True


def test_numbers_may_come_as_a_view_on_the_file():
    plain = byte_level()
    types = array("i", plain["tokenizer.ggml.token_type"])
    viewed = text_tokenizer.Tokenizer.from_gguf(byte_level(token_type=memoryview(types)))
    assert viewed.special_ids == text_tokenizer.Tokenizer.from_gguf(plain).special_ids
    with pytest.raises(ModelLoadError, match="token_type has 3 values for 264 tokens"):
        text_tokenizer.Tokenizer.from_gguf(byte_level(token_type=memoryview(types[:3])))
    with pytest.raises(ModelLoadError, match="tokens holds values other than str"):
        text_tokenizer.Tokenizer.from_gguf(byte_level(tokens=memoryview(types)))
