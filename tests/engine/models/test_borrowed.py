"""Families that have no file of ours: transformers' class on our cache gives its logits, or is refused with the reason."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from engine.config import EngineConfig
from engine.errors import ModelLoadError
from engine.models import transformers_fallback
from engine.models.borrowed import NAME, _ours, opened
from engine.runner.runner import ModelRunner
from engine.weights.loader import open_checkpoint
from kernels.cpu import launch
from tests.engine.models import eight_bits, tiny
from tests.engine.models.test_families import PROMPTS
from tests.engine.runner.feeding import logits_of

MODELS = {
    "gpt_neox": ("gpt_neox", {"hidden_act": "gelu", "attention_bias": True}),
    "helium": ("helium", {"head_dim": 16}),
    "apertus, numbers without a dim": ("apertus", {}),
    "gpt2, matrices turned, tied": ("gpt2", {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 64}),
    "vaultgemma, embedding of its own kind, windows, soft caps": (
        "vaultgemma",
        {"head_dim": 16, "sliding_window": 9, "attn_logit_softcapping": 4.0, "final_logit_softcapping": 3.0},
    ),
}

REFUSED = {
    "a state": ("mamba", {}, "keep a state"),
    "attention of its own": ("falcon", {}, "keeps its attention to itself"),
    "both directions": ("bert", {}, "looks ahead"),
    "something added to scores": ("doge", {}, "adds something of its own"),
    "two calls in a layer": ("diffllama", {}, "more than once"),
    "files of another form": ("jetmoe", {}, "cannot be run on a paged cache"),
    "angles that move": (
        "gpt_neox",
        {"hidden_act": "gelu", "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        "dynamic",
    ),
}


def runner(folder: Path) -> ModelRunner:
    return ModelRunner(EngineConfig(block_size=8, max_model_len=64, kernel_precision="exact"), open_checkpoint(folder))


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers_whole_and_in_chunks(name: str, tmp_path: Path) -> None:
    family, settings = MODELS[name]
    expected = tiny.logits(tiny.saved(tmp_path, family, **settings), PROMPTS)
    ours = runner(tmp_path)
    for most in (64, 7):
        for got, theirs in zip(logits_of(ours, PROMPTS, most=most), expected, strict=True):
            assert got.dtype == torch.float32
            assert (got - theirs).abs().max() < 1e-4 * theirs.abs().max()


WIDE = 4096
"""Of an MLP: torch cuts what it computes of some dozen tokens among its threads, at places that are no rows' ends."""


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.skipif(launch.missing is not None, reason=f"no native operators: {launch.missing}")
@pytest.mark.parametrize("name", MODELS)
def test_company_and_chunks_change_no_bit_of_wide_models(name: str, three_threads: None, tmp_path: Path) -> None:
    family, settings = MODELS[name]
    wide = {"n_inner": WIDE} if family == "gpt2" else {"intermediate_size": WIDE}
    activation = {"gpt_neox": {"hidden_act": "silu"}, "gpt2": {"activation_function": "silu"}}.get(family, {})
    tiny.saved(tmp_path, family, **{**settings, **wide, **activation})
    ours = runner(tmp_path)
    assert torch.get_num_threads() == 1  # it would take many tokens until the last bit of one logit shows it
    whole, cut = (logits_of(ours, PROMPTS, most=most) for most in (64, 7))
    assert all(map(torch.equal, cut, whole))


def _as_published(name: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As the first releases have them: GPT-2's without the class's prefix, both with masks, which are no weights."""
    if name == "gpt_neox":
        for i in range(3):
            layer = f"gpt_neox.layers.{i}.attention"
            tensors[f"{layer}.bias"] = torch.ones(1, 1, 64, 64, dtype=torch.uint8)
            tensors[f"{layer}.masked_bias"] = torch.tensor(-1e9)
            tensors[f"{layer}.rotary_emb.inv_freq"] = torch.ones(2)
        return tensors
    tensors = {key.removeprefix("transformer."): tensor for key, tensor in tensors.items()}
    return tensors | {f"h.{i}.attn.bias": torch.ones(1, 1, 64, 64) for i in range(3)}


@pytest.mark.parametrize("name", ["gpt_neox", "gpt2, matrices turned, tied"])
def test_published_files_name_tensors_in_other_ways_and_have_some_for_nothing(name: str, tmp_path: Path) -> None:
    family, settings = MODELS[name]
    expected = tiny.logits(tiny.saved(tmp_path, family, **settings), PROMPTS)
    file = tmp_path / "model.safetensors"
    save_file(_as_published(name, load_file(file)), file, {"format": "pt"})
    for got, theirs in zip(logits_of(runner(tmp_path), PROMPTS, most=64), expected, strict=True):
        assert (got - theirs).abs().max() < 1e-4 * theirs.abs().max()


@pytest.mark.parametrize("name", ["gpt_neox", "gpt2, matrices turned, tied"])
def test_a_tensor_that_the_class_does_not_know_is_named(name: str, tmp_path: Path) -> None:
    family, settings = MODELS[name]
    tiny.saved(tmp_path, family, **settings)
    file = tmp_path / "model.safetensors"
    save_file(load_file(file) | {"h.0.attn.extra.weight": torch.ones(2, 2)}, file, {"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"h\.0\.attn\.extra\.weight has no place in the model"):
        runner(tmp_path)


@pytest.mark.parametrize("is_own", [False, True])
@pytest.mark.parametrize("name", ["gpt_neox", "gpt2, matrices turned, tied"])
def test_an_output_matrix_that_is_called_tied_and_is_in_the_file_too(name: str, is_own: bool, tmp_path: Path) -> None:
    """One of its own is taken, as transformers takes it."""
    family, settings = MODELS[name]
    tiny.saved(tmp_path, family, **settings, tie_word_embeddings=True)
    file = tmp_path / "model.safetensors"
    embedding, head = {
        "gpt_neox": ("gpt_neox.embed_in.weight", "embed_out.weight"),
        "gpt2": ("transformer.wte.weight", "lm_head.weight"),
    }[family]
    tensors = load_file(file)
    save_file(tensors | {head: tensors[embedding].clone() + (0.3 if is_own else 0.0)}, file, {"format": "pt"})
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config.tie_embeddings is not is_own
    expected = tiny.logits(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32), PROMPTS)
    for got, theirs in zip(logits_of(runner(tmp_path), PROMPTS, most=64), expected, strict=True):
        assert (got - theirs).abs().max() < 1e-4 * theirs.abs().max()


def test_layers_with_a_window_keep_no_more(tmp_path: Path) -> None:
    family, settings = MODELS["vaultgemma, embedding of its own kind, windows, soft caps"]
    tiny.saved(tmp_path, family, **settings, layer_types=["sliding_attention", "full_attention", "sliding_attention"])
    assert [(group.window, group.layers) for group in runner(tmp_path).kv_groups] == [(0, (1,)), (9, (0, 2))]


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_run_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    family, settings, reason = REFUSED[name]
    tiny.configured(family, **settings).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(bytes(8))
    with pytest.raises(ModelLoadError, match=reason) as error:
        open_checkpoint(tmp_path)
    assert family in error.value.message and "config.json" in error.value.message


def test_a_type_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "spiral"}')
    with pytest.raises(ModelLoadError, match="type spiral are not supported: neither Pagewell nor transformers"):
        open_checkpoint(tmp_path)


FOREIGN = [
    f"{start}{part}_implementation{end}"
    for start, end in (("", ""), ("_", ""), ("_", "_internal"))
    for part in ("attn", "experts")
]


@pytest.mark.parametrize("field", FOREIGN)
def test_how_to_compute_is_not_the_checkpoints_to_say(field: str) -> None:
    """Values of these fields may be repositories with code."""
    values = {**json.loads(tiny.configured("helium", head_dim=16).to_json_string()), field: "some/kernel"}
    _, config = opened(values, "config.json")
    assert (config._attn_implementation, config._experts_implementation) == (NAME, "eager")
    nested = _ours({"text_config": {field: "some/kernel", "layers": [{field: "some/kernel", "n": 1}]}})
    assert nested == {"text_config": {"layers": [{"n": 1}]}}


def test_code_that_a_checkpoint_names_is_not_run(tmp_path: Path) -> None:
    tiny.saved(tmp_path, "helium", head_dim=16)
    (tmp_path / "config.json").write_text(
        json.dumps(
            json.loads((tmp_path / "config.json").read_text())
            | {"_".join(("auto", "map")): {"AutoModelForCausalLM": "evil.Model"}, "_attn_implementation": "some/kernel"}
        )
    )
    (tmp_path / "evil.py").write_text("raise SystemExit('run')")
    assert logits_of(runner(tmp_path), PROMPTS[:1], most=64)


def test_it_is_said_once_that_the_generic_path_runs_and_what_stays_dense(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    transformers_fallback._explain.cache_clear()
    tiny.saved(tmp_path, "vaultgemma", head_dim=16)
    for _ in range(2):
        runner(tmp_path)
    said = [record.message for record in caplog.records if "has no file for models of type" in record.message]
    assert len(said) == 1 and "vaultgemma" in said[0] and "6,336 of its weights are kept dense" in said[0]


def test_keys_of_blocks_tell_versions_of_transformers_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it computes may change in the last bits; blocks on disk are found again only where it has not."""
    tiny.saved(tmp_path, "helium", head_dim=16)
    ours = runner(tmp_path)
    before = ours.kv_extras
    monkeypatch.setattr(metadata, "version", lambda name: "1.2.3")
    assert before != {**ours.kv_extras, "pagewell": before["pagewell"]}


def test_quantised_matrices_stay_quantised(tmp_path: Path) -> None:
    model = eight_bits.saved(tmp_path, "helium", head_dim=16)
    ours = runner(tmp_path)
    assert ours.model.parameters()["model.layers.0.mlp.up_proj.weight"].weight.qtype == "FP8"
    for got, theirs in zip(logits_of(ours, PROMPTS, most=64), tiny.logits(model, PROMPTS), strict=True):
        assert (got - theirs).abs().max() < 1e-4 * theirs.abs().max()


def test_transformers_is_not_imported_for_families_that_have_a_file() -> None:
    code = "import sys, engine.llm, engine.models.registry, engine.weights.loader; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])
