"""Ten greedy tokens of real weights in float32, as transformers gives them from the same dequantised weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.runner.runner import ModelRunner
from engine.text.tokenizer import Tokenizer
from engine.weights.loader import open_checkpoint
from tests import models
from tests.engine.runner.feeding import answer, placed
from tests.engine.runner.sequences import sequence


def greedy(path: Path, prompts: list[str], *, most: int = 64) -> list[str]:
    """The texts of ten greedy tokens each, all prompts in one batch, in chunks of at most `most` tokens."""
    checkpoint = open_checkpoint(path)
    tokenizer = Tokenizer.from_gguf(checkpoint.metadata)
    runner = ModelRunner(
        EngineConfig(kv_cache_memory=256 << 20, kernel_precision="exact"), checkpoint, n_vocab=tokenizer.vocab_size
    )
    seqs = placed(runner, [sequence(tokenizer.encode(prompt), temperature=0.0) for prompt in prompts], n_more=10)
    answer(runner, seqs, 10, most=most)
    return [tokenizer.decode(seq.token_ids[seq.n_prompt :]) for seq in seqs]


def test_the_bundled_model_continues_as_transformers_does() -> None:
    prompts = ["The capital of France is", "def add(a, b):\n    return"]
    france, add = greedy(models.smollm2(), prompts, most=3)
    assert france == " Paris.\n\nThe answer is: 2"
    assert add.startswith(" a + b")


@pytest.mark.models
@pytest.mark.parametrize(
    "path, continuations",
    [
        (
            models.gemma,
            {
                "The capital of France is": " the capital of the country of France. It is",
                "日本の首都は 🙂👩‍👩‍👧": "\u200d👦 1000万人の人口",
            },
        ),
        (
            models.qwen_05b,
            {
                "The capital of France is": " Paris. Paris is located in the northwestern part",
                "def add(a, b):\n    return": " a + b",
            },
        ),
    ],
    ids=["gemma", "qwen"],
)
def test_other_models_continue_as_transformers_does(path: Callable[[], Path], continuations: dict[str, str]) -> None:
    for text, expected in zip(greedy(path(), list(continuations)), continuations.values(), strict=True):
        assert text.startswith(expected)
