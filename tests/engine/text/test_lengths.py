"""Lower bounds on token counts: never above the truth, and silent where a vocabulary allows none."""

from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers

from engine.text.lengths import Lengths
from tests import models
from tests.engine.text import corpus, oracle

DENSE = [
    "a" * 999,
    " " * 5000,
    "\x04\x06\x13" * 500,
    "\u212b\u0301" * 300,
    "\u1112\u1161\u11ab" * 300,
    "<|im_start|>" * 300,
    "-" * 4000,
]

each_model = pytest.mark.parametrize(
    "path_of",
    [
        models.smollm2,
        pytest.param(models.qwen_05b, marks=pytest.mark.models),
        pytest.param(models.gemma, marks=pytest.mark.models),
    ],
)


@each_model
def test_a_text_never_has_fewer_tokens_than_its_bound(path_of):
    tokenizer = oracle.ours(path_of())
    for text in (*corpus.ALL, *DENSE):
        assert tokenizer.at_least(text) <= len(tokenizer.encode(text, add_special=False)), text[:20]
    assert tokenizer.at_least("x" * (64 << 20)) > 200_000


@given(st.text(min_size=100))
def test_no_text_breaks_the_bound(text):
    tokenizer = oracle.ours(models.smollm2())
    assert tokenizer.at_least(text * 20) <= len(tokenizer.encode(text * 20, add_special=False))


def test_nothing_is_claimed_where_characters_may_vanish():
    def core() -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_str(oracle.ours(models.smollm2())._core.to_str())

    assert Lengths(core()).at_least("x" * 100_000) > 0
    stripping, swallowing, cutting = core(), core(), core()
    stripping.normalizer = normalizers.Strip()
    swallowing.add_tokens([AddedToken("<mask>", lstrip=True)])
    cutting.enable_truncation(10)
    for lossy in (stripping, swallowing, cutting, tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0}, "[UNK]"))):
        assert Lengths(lossy).at_least("x" * 100_000) == 0
