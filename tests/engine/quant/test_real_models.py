"""Real models that the formats' own tools quantised go on as the dense ones do."""

from __future__ import annotations

import pytest

from engine.llm import LLM, SamplingParams
from tests import models
from tests.fixtures.make_quantized import TOOLS

PROMPTS = {
    "The capital of France is": " Paris",
    "def add(a, b):\n    return": " a + b",
}
EVERY = [f"{tool}-{name}" for tool, made in TOOLS.items() for name in made.real]


@pytest.mark.models
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("of", models.REAL_QUANTIZED)
def test_greedy_answers_begin_as_the_dense_models_do(of: str, name: str) -> None:
    folder = models.quantized(name, of)
    llm = LLM(folder, progress=False, max_model_len=64, kv_cache_memory=64 << 20, max_num_seqs=4)
    outputs = llm.generate(list(PROMPTS), SamplingParams(temperature=0, max_tokens=4))
    texts = [output.outputs[0].text for output in outputs]
    follow = [text.startswith(begin) for text, begin in zip(texts, PROMPTS.values(), strict=True)]
    # So small a model keeps facts at four bits, though not the likeliest of names that are all short.
    assert follow == [True, True] if llm.info.quantization in ("INT8", "FP8") else follow[0], texts
