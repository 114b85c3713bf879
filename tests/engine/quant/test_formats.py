"""Checkpoints that the formats' own tools wrote: integers, zero points, scales, values and logits are as the tools have them."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file

from engine.config import EngineConfig
from engine.runner.runner import ModelRunner
from engine.weights.loader import open_checkpoint
from kernels.reference import dequant
from tests import models
from tests.engine.quant.checkpoints import EVERY, base, expected, numbers, points
from tests.engine.runner.feeding import logits_of

QTYPES = {
    "fp8": "FP8", "mxfp8": "FP8", "w8a8": "INT8", "w8a16": "INT8", "int8": "INT8", "gptq-8": "INT8", "nvfp4": "E2M1",
    "mxfp4": "E2M1", "nf4": "NF4", "fp4": "FP4", "w4a16": "INT4", "w3a16": "INT4", "w2a16": "INT4", "gptq": "INT4", "awq": "INT4",
    "own": "INT4", "mixed": None,
}  # fmt: skip
"""By the beginning of a checkpoint's name, without its tool's."""
EXACT = EngineConfig(block_size=8, max_model_len=64, kernel_precision="exact", kv_cache_memory=1 << 22)
TOLERANCE = 1e-4
"""Of logits, relative to the largest."""
PROMPTS = [random.Random(n).choices(range(512), k=n) for n in (40, 1, 9)]


def qtype_of(name: str) -> str | None:
    return next(QTYPES[begin] for begin in sorted(QTYPES, key=len, reverse=True) if name.partition("-")[2].startswith(begin))


@pytest.mark.parametrize("name", EVERY)
def test_every_matrix_is_what_its_tool_makes_of_it(name: str) -> None:
    checkpoint, modules = open_checkpoint(models.quantized(name)), expected(name)
    assert len(modules) >= 13
    assert set(checkpoint.names()) == set(base())
    shifts = set()
    for module, parts in modules.items():
        weight = checkpoint.weight(f"{module}.weight")
        assert weight.qtype == (qtype_of(name) or weight.qtype) == checkpoint.qtype(f"{module}.weight")
        assert weight.shape == checkpoint.shape(f"{module}.weight") == tuple(base()[f"{module}.weight"].shape)
        assert weight.n_bytes <= checkpoint.weight_bytes(f"{module}.weight") <= weight.n_bytes * 1.2
        if "q" in parts:
            # Both may be moved by the same number, so that the type's range has the same middle.
            shift = (numbers(weight) - parts["q"].float()).unique()
            assert len(shift) == 1
            shifts.add(shift.item())
            if "zeros" in parts:
                zeros = parts["zeros"].repeat_interleave(weight.shape[1] // parts["zeros"].shape[1], 1)
                assert torch.equal(points(weight), zeros + shift)
            elif weight.qtype in ("INT4", "INT8"):
                assert torch.equal(points(weight), torch.zeros(weight.shape) + shift)
        if "values" in parts:
            assert torch.equal(numbers(weight), parts["values"])
        dense = dequant.dense(weight)
        assert torch.allclose(dense, parts["dense"], rtol=1e-6, atol=0)
        assert (dense - parts["dense"] == 0).float().mean() > 0.5
    assert len(shifts) <= (2 if "mixed" in name else 1)


@pytest.mark.parametrize("name", EVERY)
def test_what_is_not_quantised_is_served_as_it_is(name: str) -> None:
    checkpoint, modules = open_checkpoint(models.quantized(name)), expected(name)
    plain = [key for key in base() if key.removesuffix(".weight") not in modules]
    assert {"lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"} <= {*plain}
    assert any(key.endswith("_proj.weight") for key in plain) == (len(modules) == 13)
    for key in plain:
        served = checkpoint.weight(key).data if base()[key].dim() == 2 else checkpoint.vector(key)
        assert torch.equal(served.float(), base()[key].float())


@pytest.mark.parametrize("name", EVERY)
def test_logits_are_those_of_transformers_with_the_tools_values(name: str) -> None:
    folder = models.quantized(name)
    config = transformers.LlamaConfig(
        **{k: v for k, v in json.loads((folder / "config.json").read_text()).items() if k != "quantization_config"}
    )
    model = transformers.LlamaForCausalLM(config).float().eval()
    values = {key: tensor.float() for key, tensor in base().items()}
    values |= {f"{module}.weight": parts["dense"] for module, parts in expected(name).items()}
    model.load_state_dict(values)
    runner = ModelRunner(EXACT, open_checkpoint(folder))
    with torch.no_grad():
        for prompt, ours in zip(PROMPTS, logits_of(runner, PROMPTS, most=7), strict=True):
            theirs = model(torch.tensor([prompt])).logits[0]
            assert (ours - theirs).abs().max() < TOLERANCE * theirs.abs().max()


def test_quantising_is_seen_in_the_logits() -> None:
    """Otherwise the comparison above would not notice values that are nearly right."""
    plain = logits_of(ModelRunner(EXACT, open_checkpoint(models.quantized("tiny-base", of="."))), PROMPTS, most=7)
    for name in ("autoround-gptq-8-64-asym", "transformers-fp8-block"):
        quantised = logits_of(ModelRunner(EXACT, open_checkpoint(models.quantized(name))), PROMPTS, most=7)
        for ours, dense in zip(quantised, plain, strict=True):
            assert (ours - dense).abs().max() > 5 * TOLERANCE * dense.abs().max()


def test_columns_in_another_order_are_put_back() -> None:
    name = "autoround-gptq-4-act-order"
    checkpoint = open_checkpoint(models.quantized(name))
    for module in expected(name):
        order = checkpoint.weight(f"{module}.weight").order
        assert order.sort().values.tolist() == list(range(len(order))) and not torch.equal(order, order.sort().values)


def test_shards_and_the_names_of_a_model_that_sees(tmp_path: Path) -> None:
    """Each matrix's parts are spread over two files, under the names of a text half."""
    from safetensors.torch import load_file

    name = "llmcompressor-mixed"
    stored = load_file(models.quantized(name) / "model.safetensors")
    named = {key.replace("model.", "model.language_model."): tensor for key, tensor in stored.items()}
    halves = [dict(list(named.items())[i::2]) for i in range(2)]
    for i, half in enumerate(halves):
        save_file(half, tmp_path / f"part-{i}.safetensors")
    weight_map = {key: f"part-{i}.safetensors" for i, half in enumerate(halves) for key in half}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    shutil.copy(models.quantized(name) / "config.json", tmp_path)
    spread, whole = open_checkpoint(tmp_path), open_checkpoint(models.quantized(name))
    assert set(spread.names()) == set(whole.names()) and spread.n_bytes == whole.n_bytes
    for module in expected(name):
        ours, theirs = (dequant.dense(checkpoint.weight(f"{module}.weight")) for checkpoint in (spread, whole))
        assert torch.equal(ours, theirs)
