"""SentencePiece vocabularies in GGUF metadata against the sentencepiece library itself, on a small model trained here."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import sentencepiece

from engine.text.merges import merges_by_score
from engine.text.output import OutputText
from engine.text.tokenizer import Tokenizer
from tests.engine.text import corpus

USER_DEFINED = ["<tool>", "▁▁", "▁▁▁▁"]
SOURCES = sorted(Path(__file__).parent.glob("*.py"))


def train(add_dummy_prefix: bool) -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    lines = [line for path in SOURCES for line in path.read_text("utf-8").splitlines() if "\0" not in line]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=1500,
        byte_fallback=True,
        character_coverage=0.99,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=add_dummy_prefix,
        user_defined_symbols=USER_DEFINED,
        num_threads=1,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def as_gguf(model: sentencepiece.SentencePieceProcessor, add_space_prefix: bool) -> dict:
    """What llama.cpp's converter writes: user-defined symbols with real spaces, types, scores, no merges."""
    ids = range(model.get_piece_size())

    def kind(i: int) -> int:
        if model.id_to_piece(i) in USER_DEFINED:
            return 4
        return 2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i) else 1

    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(i).replace("▁", " ") if kind(i) == 4 else model.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [model.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": [kind(i) for i in ids],
        "tokenizer.ggml.add_space_prefix": add_space_prefix,
    }


@pytest.fixture(scope="module", params=[True, False], ids=["space-prefix", "no-prefix"])
def pair(request) -> tuple[sentencepiece.SentencePieceProcessor, Tokenizer]:
    model = train(request.param)
    return model, Tokenizer.from_gguf(as_gguf(model, request.param))


def test_ids_are_those_of_the_library(pair):
    model, tokenizer = pair
    strings = [*corpus.ALL, *(line for path in SOURCES for line in path.read_text("utf-8").splitlines())]
    strings = [s for s in strings if "▁" not in s]  # text that holds ▁ itself cannot be told from spaces
    assert [s for s in strings if tokenizer.encode(s, add_special=False, parse_special=False) != model.encode(s)] == []


def test_text_comes_back_with_its_first_space(pair):
    _, tokenizer = pair
    for text in corpus.ALL:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_continuation_keeps_the_space_that_its_first_token_begins_with(pair):
    _, tokenizer = pair
    output = OutputText(tokenizer)
    token = next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == b" the")
    assert output.push(token) == " the"


def test_unknown_characters_become_bytes(pair):
    _, tokenizer = pair
    ids = tokenizer.encode("🛸", add_special=False)
    assert [tokenizer.token_bytes(i) for i in ids if tokenizer.token_bytes(i) != b" "] == [bytes([b]) for b in "🛸".encode()]


def test_special_tokens_get_no_space_before_them():
    tokenizer = Tokenizer.from_gguf(as_gguf(train(True), True))
    begins = tokenizer.encode("<s>def", add_special=False)
    assert begins[0] == tokenizer.bos_id
    assert tokenizer.decode(begins, skip_special=False) == "<s>def"
    assert tokenizer.encode("def")[0] == tokenizer.bos_id, "SentencePiece models begin with BOS unless the file says otherwise"
    assert tokenizer.encode("<s>def") == begins, "no second BOS"
    assert tokenizer.end_ids == {2}


def test_merges_are_every_way_to_join_two_tokens_best_result_first():
    tokens = ["<s>", "a", "b", "c", "ab", "bc", "abc", "cab", "aa", "日", "日本", "本", "x🙂", "x", "🙂"]
    scores = [0.0, -9, -9, -9, -3, -1, -2, -5, -4, -9, -6, -9, -7, -9, -9]
    ordinary = list(range(1, len(tokens)))
    expected = []
    for i in sorted(ordinary, key=lambda i: -scores[i]):
        whole = tokens[i]
        cuts = [(whole[:k], whole[k:]) for k in range(1, len(whole))]
        expected += [cut for cut in cuts if cut[0] in tokens[1:] and cut[1] in tokens[1:]]
    assert merges_by_score(tokens, scores, ordinary) == expected
    assert merges_by_score(tokens, scores, []) == []
    assert merges_by_score(["a"], [0.0], [0]) == []
