"""Tokenizers of the real models against transformers, and what they promise beside that."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import unicodedata
from pathlib import Path

import pytest
from tokenizers import normalizers, pre_tokenizers

from engine.text.detokenizer import Detokenizer
from engine.text.tokenizer import Tokenizer
from tests import models
from tests.engine.text import corpus, oracle

ALL_MODELS = [
    models.smollm2,
    pytest.param(models.qwen_05b, marks=pytest.mark.models),
    pytest.param(models.gemma, marks=pytest.mark.models),
]
each_model = pytest.mark.parametrize("path_of", ALL_MODELS, ids=["smollm2", "qwen", "gemma"])


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return oracle.ours(models.smollm2())


def _differences(gguf: Path, theirs, strings: list[str]) -> list[tuple[str, list[int], list[int]]]:
    ours = oracle.ours(gguf)
    pairs = ((s, ours.encode(s, add_special=False), theirs.encode(s, add_special_tokens=False).ids) for s in strings)
    return [(s, a, b) for s, a, b in pairs if a != b]


@each_model
def test_odd_strings_become_the_ids_that_transformers_gives(path_of):
    gguf = path_of()
    assert _differences(gguf, oracle.theirs(gguf), corpus.EVERYWHERE) == []


@each_model
def test_special_tokens_in_text_are_parsed_as_transformers_does(path_of):
    gguf = path_of()
    names = "<|im_start|>user\nhi<|im_end|>\n<start_of_turn>model\n<end_of_turn><|endoftext|> <tool_call>{}</tool_call><eos>"
    assert _differences(gguf, oracle.theirs(gguf), [names, "x" + names, " " + names + " "]) == []


@each_model
def test_special_tokens_in_text_are_characters_when_asked(path_of):
    ours, theirs = oracle.ours(path_of()), oracle.theirs(path_of())
    theirs.encode_special_tokens = True
    text = "<|im_start|>user\nhi<|im_end|>\n<start_of_turn>model<end_of_turn><|endoftext|><eos>"
    ids = ours.encode(text, add_special=False, parse_special=False)
    assert ids == theirs.encode(text, add_special_tokens=False).ids
    assert not ours.special_ids & set(ids)
    assert ours.decode(ids) == text
    assert ours.special_ids & set(ours.encode(text, add_special=False))


def test_smollm2_takes_every_digit_apart_as_its_own_tokenizer_does():
    """SmolLM2's tokenizer.json is Digits(individual) + ByteLevel. transformers' GGUF conversion leaves Digits out."""
    theirs = oracle.theirs(models.smollm2())
    assert _differences(models.smollm2(), theirs, corpus.NUMBERS_BEYOND_ASCII), "transformers reads tokenizer.ggml.pre by now"
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    assert _differences(models.smollm2(), theirs, corpus.ALL) == []


@pytest.mark.models
def test_qwen_composes_characters_as_its_own_tokenizer_does():
    """Qwen's tokenizer.json normalises to NFC, as transformers' Qwen2Tokenizer does; its GGUF conversion leaves that out."""
    theirs = oracle.theirs(models.qwen_05b())
    assert _differences(models.qwen_05b(), theirs, corpus.COMBINING), "transformers normalises by now"
    theirs.normalizer = normalizers.NFC()
    assert _differences(models.qwen_05b(), theirs, corpus.ALL) == []


@pytest.mark.models
def test_gemma_takes_the_longest_run_of_spaces_first():
    """User-defined symbols match before any merge, the longest first (SentencePiece's PrefixMatcher; llama.cpp's partition).

    transformers' GGUF conversion derives merges for them instead and cuts a long run into other pieces.
    """
    gemma = oracle.ours(models.gemma())
    assert _differences(models.gemma(), oracle.theirs(models.gemma()), corpus.LONG_SPACES)
    assert [len(gemma.token_bytes(i)) for i in gemma.encode(" " * 100, add_special=False)] == [31, 31, 31, 7]
    assert [gemma.token_text(i) for i in gemma.encode("a" + " " * 37 + "b", add_special=False)] == ["a", " " * 31, " " * 6, "b"]
    assert [gemma.token_text(i) for i in gemma.encode("</s> <s>", add_special=False)] == ["</s>", " ", "<s>"]


@each_model
def test_what_was_encoded_decodes_to_itself(path_of):
    tokenizer = oracle.ours(path_of())
    composes = path_of is models.qwen_05b
    for text in corpus.ALL:
        expected = unicodedata.normalize("NFC", text) if composes else text
        assert tokenizer.decode(tokenizer.encode(text)) == expected
        assert tokenizer.decode(tokenizer.encode(text, add_special=False), skip_special=False) == expected


@each_model
def test_emoji_and_cjk_arrive_whole_from_byte_tokens(path_of):
    tokenizer = oracle.ours(path_of())
    text = "日本の首都は 🙂👩‍👩‍👧 東京 👨🏽‍🚀"
    ids = tokenizer.encode(text, add_special=False)
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(i) for i in ids]
    assert "".join(pieces) == text
    assert "�" not in "".join(pieces)
    if path_of is models.smollm2:
        assert any(tokenizer.token_text(i) == "�" for i in ids), "no token is part of a character: nothing was tested"


@each_model
def test_token_bytes_join_to_the_text(path_of):
    tokenizer = oracle.ours(path_of())
    text = "naïve 🙂 déjà\tvu\n    日本 <tool_call>"
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))).decode() == text


@each_model
def test_every_id_has_bytes_and_a_text(path_of):
    tokenizer = oracle.ours(path_of())
    pieces = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
    assert all(pieces[i] == b"" for i in tokenizer.special_ids)
    assert sum(map(len, pieces)) > 4 * len(pieces)
    assert tokenizer.token_bytes(tokenizer.vocab_size + 5) == b""
    assert all(tokenizer.token_text(i) for i in tokenizer.special_ids)


def test_ends_and_beginnings_of_smollm2(smollm2):
    assert {smollm2.token_text(i) for i in smollm2.end_ids} == {"<|im_end|>", "<|endoftext|>"}
    assert smollm2.token_text(smollm2.bos_id) == "<|im_start|>"
    assert not smollm2.add_bos
    assert smollm2.fim is None
    assert smollm2.vocab_size == 49152


@pytest.mark.models
def test_both_sizes_of_qwen_share_one_vocabulary():
    """The small one drafts for the large one, and what holds for its tokenizer holds for both."""
    small, large = oracle.ours(models.qwen_05b()), oracle.ours(models.qwen_15b())
    assert [large.encode(text) for text in corpus.ALL] == [small.encode(text) for text in corpus.ALL]
    assert large.end_ids == small.end_ids and large.vocab_size == small.vocab_size


@pytest.mark.models
def test_ends_and_beginnings_of_qwen():
    qwen = oracle.ours(models.qwen_05b())
    ends = {qwen.token_text(i) for i in qwen.end_ids}
    assert ends == {"<|im_end|>", "<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}
    assert not qwen.add_bos
    assert [qwen.token_text(i) for i in (qwen.fim.prefix, qwen.fim.suffix, qwen.fim.middle)] == [
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
    ]
    assert qwen.token_bytes(qwen.encode("<tool_call>")[0]) == b"<tool_call>", "a user-defined token is text, for tool parsers"
    assert qwen.token_bytes(151_900) == b"", "padding rows mean nothing"


@pytest.mark.models
def test_ends_and_beginnings_of_gemma():
    gemma = oracle.ours(models.gemma())
    assert {gemma.token_text(i) for i in gemma.end_ids} == {"<eos>", "<end_of_turn>"}, "</s> is HTML here"
    assert gemma.encode("hi")[0] == gemma.bos_id
    assert gemma.encode("<bos>hi") == gemma.encode("hi"), "no second BOS"
    assert gemma.encode("hi", add_special=False) == gemma.encode("hi")[1:]


def test_half_a_surrogate_pair_becomes_a_replacement_character(smollm2):
    assert smollm2.decode(smollm2.encode("a\ud83db")) == "a�b"
    assert smollm2.decode(smollm2.encode("a\ud83d\ude42b")) == "a🙂b"


def test_a_long_text_lets_other_threads_run(smollm2):
    """The event loop is one of them: every stream of the server would stand still."""
    text = "The quick brown fox, naïve 日本 12345\n" * 4000
    longest_s, ended = 0.0, threading.Event()

    def tick() -> None:
        nonlocal longest_s
        last = time.perf_counter()
        while not ended.wait(0.001):
            now = time.perf_counter()
            longest_s, last = max(longest_s, now - last), now

    ticking = threading.Thread(target=tick)
    ticking.start()
    began = time.perf_counter()
    smollm2.encode(text)
    took_s = time.perf_counter() - began
    ended.set()
    ticking.join()
    assert longest_s < took_s / 2


def test_a_batch_of_one_has_the_ids_of_a_single_text(smollm2):
    for text in corpus.ALL:
        assert smollm2.encode(text, add_special=False) == smollm2._core.encode(text, add_special_tokens=False).ids


def test_encoding_does_not_make_a_fork_warn():
    code = (
        "import os; from tests import models; from tests.engine.text import oracle\n"
        "oracle.ours(models.smollm2()).encode('Hello')\n"
        "pid = os.fork()\n"
        "os.waitpid(pid, 0) if pid else os._exit(0)"
    )
    environ = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    run = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert run.returncode == 0 and "parallelism" not in run.stderr


def test_threads_may_parse_special_tokens_differently_at_once(smollm2):
    text = "<|im_start|>x<|im_end|>" * 50
    parsed, plain = smollm2.encode(text), smollm2.encode(text, parse_special=False)
    wrong = []

    def work(parse: bool, expected: list[int]) -> None:
        for _ in range(50):
            try:
                if smollm2.encode(text, parse_special=parse) != expected:
                    wrong.append(parse)
            except RuntimeError as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=a) for a in ((True, parsed), (False, plain)) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
