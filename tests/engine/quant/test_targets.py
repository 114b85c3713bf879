"""Which matrices of a model are quantised on load, by the names under which its layers ask for them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from msgspec import structs

from engine.models.latent import HeadMatrices
from engine.models.parts import Matrix
from engine.models.transformers_fallback import _AndHead, _Value
from engine.quant import on_load
from engine.runner.prediction import weigh
from engine.runner.runner import ModelRunner
from engine.weights.loader import open_checkpoint
from tests.engine.models import test_borrowed, test_families, tiny
from tests.engine.quant.test_on_load import CONFIG, PROMPTS
from tests.engine.runner.feeding import logits_of

INT4 = structs.replace(CONFIG, quantization="int4")
SIZES = {"hidden_size_per_layer_input": 16, "kv_lora_rank": 32}
KEPT = {
    "deepseek v3, experts": {r".*\.mlp\.gate\.weight", r".*\.self_attn\.kv_b_proj\.weight"},
    "gemma4, experts, values that are keys, soft cap": {r".*\.router\.proj\.weight"},
    "gemma4, an embedding for each layer, shared keys": set(),
}
"""Model -> its matrices that stay as they are."""
ENDS = r"(model\.embed_tokens(_per_layer)?|lm_head)\.weight"


@pytest.mark.parametrize("name", KEPT)
def test_routers_and_heads_matrices_stay_and_embeddings_have_eight_bits(name: str, tmp_path: Path) -> None:
    family, settings = test_families.MODELS[name]
    tiny.saved(tmp_path, family, **{key: SIZES.get(key) if value and key in SIZES else value for key, value in settings.items()})
    runner, made = ModelRunner(INT4, open_checkpoint(tmp_path)), on_load.opened(open_checkpoint(tmp_path), INT4)
    kept, met = KEPT[name], set()
    for slot, asked in runner.model.parameters().items():
        if len(asked.shape) != 2 or asked.shape[1] % 32:
            continue
        pattern = next((pattern for pattern in kept if re.fullmatch(pattern, slot)), None)
        met |= {pattern} - {None}
        assert made.qtype(slot) == ("F32" if pattern else "INT8" if re.fullmatch(ENDS, slot) else "INT4"), slot
    assert met == kept
    assert all(logits.isfinite().all() for logits in logits_of(runner, PROMPTS, most=16))


def test_matrices_of_heads_have_the_values_of_the_file(tmp_path: Path) -> None:
    family, settings = test_families.MODELS["deepseek v3, latent queries"]
    tiny.saved(tmp_path, family, **{**settings, "kv_lora_rank": 32})
    dense, quantised = (ModelRunner(config, open_checkpoint(tmp_path)) for config in (CONFIG, INT4))

    def matrices(runner: ModelRunner) -> list[torch.Tensor]:
        latents = [layer.mixer.latents for layer in runner.model.layers]
        return [x.value for of_layer in latents for x in vars(of_layer).values() if isinstance(x, HeadMatrices)]

    assert len(matrices(dense)) == 2 * dense.model_config.n_layers
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(matrices(quantised), matrices(dense), strict=True))


@pytest.mark.parametrize("name", test_borrowed.MODELS)
def test_of_models_that_transformers_computes_only_what_products_of_ours_use(name: str, tmp_path: Path) -> None:
    family, settings = test_borrowed.MODELS[name]
    model = tiny.saved(tmp_path, family, **settings)
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    made = on_load.opened(checkpoint, INT4)
    runner = ModelRunner(INT4, checkpoint)
    types: dict[str, set[str]] = {}
    held = 0
    for slot, asked in runner.model.parameters().items():
        if len(asked.shape) == 2:
            types.setdefault(type(asked).__name__, set()).add(made.qtype(slot))
        if isinstance(asked, _AndHead):
            held += asked._head.weight.n_bytes
            asked = asked._embedding
        if isinstance(asked, _Value):
            (module, own), *_ = asked._places
            held += getattr(module, own).nbytes
        else:
            part = asked if isinstance(asked, Matrix) else getattr(asked, "_part", asked)
            held += part.weight.n_bytes if isinstance(part, Matrix) else part.value.nbytes
    ours = types.get("Linear", set()) | types.get("Matrix", set())
    assert "INT4" in ours if family != "gpt2" else "BF16" in types["_Turned"]
    assert all(kinds == {"BF16"} for kind, kinds in types.items() if kind in ("_Turned", "_Value"))
    assert types.get("Embedding", {"INT8"}) == {"INT8"}
    ends = {name for name, kind in checkpoint.config.borrowed_files.matrices.items() if kind == "end"} & set(checkpoint.names())
    assert all(made.qtype(end) == "INT8" for end in ends)
    assert held == pytest.approx(weigh(made, INT4).held_bytes, rel=0.06)  # operators pad the last rows of so small matrices
