"""Checkpoints that are not sound, or of kinds that cannot be served: each is refused by the name of its field or tensor."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.errors import ModelLoadError
from engine.weights.loader import open_checkpoint
from engine.weights.safetensors import SafetensorsCheckpoint
from kernels.ops import CODES
from kernels.reference import dequant
from tests import models
from tests.engine.quant.checkpoints import expected

MODULE = "model.layers.0.mlp.down_proj"
GPTQ, AWQ, NF4 = "autoround-gptq-4-128-sym", "autoround-awq-128-asym", "transformers-nf4-double"
FP8, PACKED, INT8 = "transformers-fp8-block", "llmcompressor-w4a16-asym", "transformers-int8"


def changed(
    tmp_path: Path,
    name: str,
    tensors: Callable[[dict[str, Tensor]], None] = lambda stored: None,
    settings: Callable[[dict[str, Any]], None] = lambda config: None,
) -> Path:
    """A copy of a checkpoint, its tensors and quantization_config changed in place."""
    folder = tmp_path / name
    folder.mkdir()
    stored = load_file(models.quantized(name) / "model.safetensors")
    config = json.loads((models.quantized(name) / "config.json").read_text())
    tensors(stored)
    settings(config["quantization_config"])
    save_file({key: tensor.contiguous() for key, tensor in stored.items()}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def refused(folder: Path, message: str) -> None:
    """Opening, or asking for what it is about, names the folder and says what to do."""
    with pytest.raises(ModelLoadError, match=message) as raised:
        open_checkpoint(folder).weight(f"{MODULE}.weight")
    assert str(folder) in raised.value.message and raised.value.hint


def put(part: str, change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], None]:
    def apply(stored: dict[str, Tensor]) -> None:
        stored[f"{MODULE}.{part}"] = change(stored[f"{MODULE}.{part}"])

    return apply


def drop(part: str) -> Callable[[dict[str, Tensor]], None]:
    return lambda stored: stored.pop(f"{MODULE}.{part}")


def entry(tensor: Tensor, value: int, at: int = 5) -> Tensor:
    tensor = tensor.clone()
    tensor[at] = value
    return tensor


TENSORS = {
    "GPTQ, zero points missing": (GPTQ, drop("qzeros"), r"down_proj\.qzeros is missing"),
    "GPTQ, scales missing": (GPTQ, drop("scales"), r"down_proj\.scales is missing"),
    "GPTQ, scales too few": (GPTQ, put("scales", lambda t: t[:-1]), r"scales has the shape \[3, 256\] instead of \[4, 256\]"),
    "GPTQ, zero points too few": (GPTQ, put("qzeros", lambda t: t[:, :-1]), r"qzeros has the shape \[4, 31\] instead of"),
    "GPTQ, rows cut": (GPTQ, put("qweight", lambda t: t[:-1]), "has 63 rows, which hold no whole columns of 4 bits"),
    "GPTQ, other type": (GPTQ, put("qweight", lambda t: t.long()), "qweight is of type I64 instead of I32"),
    "GPTQ, g_idx too short": (GPTQ, put("g_idx", lambda t: t[:-1]), r"g_idx has the shape \[511\]"),
    "GPTQ, g_idx out of range": (GPTQ, put("g_idx", lambda t: entry(t, 4)), "g_idx names groups from 0 to 4, but there are 4"),
    "GPTQ, g_idx negative": (GPTQ, put("g_idx", lambda t: entry(t, -1)), "g_idx names groups from -1"),
    "GPTQ, g_idx uneven": (GPTQ, put("g_idx", lambda t: entry(t, 3)), "g_idx has groups that are not of 128 columns each"),
    "AWQ, zero points missing": (AWQ, drop("qzeros"), r"qzeros is missing"),
    "AWQ, scales of another width": (AWQ, put("scales", lambda t: t[:, :-8]), r"scales has the shape \[4, 248\]"),
    "AWQ, one dim": (AWQ, put("qweight", lambda t: t.flatten()), "qweight has the shape"),
    "AWQ, empty": (AWQ, put("qweight", lambda t: t[:, :0]), "qweight has the shape"),
    "FP8, scale missing": (FP8, drop("weight_scale_inv"), "neither weight_scale_inv nor weight_scale is there"),
    "FP8, scale of another shape": (
        FP8,
        put("weight_scale_inv", lambda t: t[:, :-1]),
        r"weight_scale_inv has the shape \[2, 3\]",
    ),
    "FP8, scale of integers": (FP8, put("weight_scale_inv", lambda t: t.int()), "weight_scale_inv is of type I32"),
    "FP8, e5m2": (FP8, put("weight", lambda t: t.float().to(torch.float8_e5m2)), "is of type F8_E5M2"),
    "packed, shape missing": (PACKED, drop("weight_shape"), "weight_shape is missing"),
    "packed, shape lies": (PACKED, put("weight_shape", lambda t: entry(t, 1000, 1)), r"weight_packed has the shape \[256, 64\]"),
    "packed, shape negative": (PACKED, put("weight_shape", lambda t: entry(t, -512, 1)), "says that the matrix is 256 x -512"),
    "packed, zero points missing": (PACKED, drop("weight_zero_point"), "weight_zero_point is missing"),
    "packed, scale missing": (PACKED, drop("weight_scale"), r"down_proj\.weight_\w+ belongs to no quantised matrix"),
    "packed, scale of another shape": (PACKED, put("weight_scale", lambda t: t[:, :1]), r"weight_scale has the shape \[256, 1\]"),
    "NVFP4, whole scale missing": ("llmcompressor-nvfp4", drop("weight_global_scale"), "weight_global_scale is missing"),
    "NVFP4, scales of another shape": ("llmcompressor-nvfp4", put("weight_scale", lambda t: t[:, 1:]), r"\[256, 31\]"),
    "MXFP4, scales of floats": ("llmcompressor-mxfp4", put("weight_scale", lambda t: t.half()), "weight_scale is of type F16"),
    "W8A8, scale for each value": ("llmcompressor-w8a8", put("weight_scale", lambda t: t.expand(-1, 512)), r"\[256, 512\]"),
    "NF4, absmax missing": (NF4, drop("weight.absmax"), r"weight\.absmax is missing"),
    "NF4, absmax too short": (NF4, put("weight.absmax", lambda t: t[:-1]), r"absmax has the shape \[2047\]"),
    "NF4, nested absmax missing": (NF4, drop("weight.nested_absmax"), "nested_absmax is missing"),
    "NF4, values cut": (NF4, put("weight", lambda t: t[:-1]), "has 65535 bytes, which are not 256 x 512 values"),
    "NF4, other codes": (NF4, put("weight.quant_map", lambda t: t * 1.1), "quant_map has other values than NF4"),
    "NF4, state is no JSON": (
        NF4,
        put("weight.quant_state.bitsandbytes__nf4", lambda t: t[:-3]),
        r"bitsandbytes__nf4 cannot be read as JSON",
    ),
    "int8, scales missing": (INT8, drop("SCB"), "is of type I8, which is not part of its quantisation"),
    "int8, scales too few": (INT8, put("SCB", lambda t: t[:-1]), r"SCB has the shape \[255\]"),
    "int8, tiled rows": (INT8, put("weight_format", lambda t: t + 1), "says that rows do not follow each other"),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_that_do_not_agree(case: str, tmp_path: Path) -> None:
    name, change, message = TENSORS[case]
    refused(changed(tmp_path, name, change), message)


def state(**changes: object) -> Callable[[dict[str, Tensor]], None]:
    """The quantisation state of four bits with other values."""

    def change(stored: Tensor) -> Tensor:
        return torch.tensor(list(json.dumps({**json.loads(bytes(stored.tolist())), **changes}).encode()), dtype=torch.uint8)

    return put("weight.quant_state.bitsandbytes__nf4", change)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": [256, 256]}, "has 65536 bytes, which are not 256 x 256 values"),
        ({"shape": [1 << 40, 1]}, "shape is .* expected numbers of rows and columns"),
        ({"shape": "256"}, "shape is 256"),
        ({"blocksize": 0}, "blocksize is 0"),
        ({"blocksize": 16}, "a scale for each 16"),
        ({"quant_type": "fp4"}, "quant_type is fp4 instead of nf4"),
        ({"nested_blocksize": 16}, r"nested_absmax has the shape \[8\] instead of \[128\]"),
        ({"nested_offset": "x"}, "nested_offset is 'x'"),
    ],
)
def test_states_of_four_bits_that_do_not_agree(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    refused(changed(tmp_path, NF4, state(**changes)), message)


@pytest.mark.parametrize(("n_in", "block"), [(96, 128), (96, 64), (160, 128), (64, 256), (384, 256), (96, 4096), (128, 128)])
def test_blocks_of_four_bits_run_on_over_the_ends_of_rows(n_in: int, block: int, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    q = torch.randint(0, 16, (7, n_in), generator=generator)
    absmax = torch.rand(-(-q.numel() // block), generator=generator) + 0.5

    def write(stored: dict[str, Tensor]) -> None:
        pairs = q.flatten().view(-1, 2)
        stored[f"{MODULE}.weight"] = (pairs[:, 0] << 4 | pairs[:, 1]).to(torch.uint8).unsqueeze(1)
        stored[f"{MODULE}.weight.absmax"] = absmax
        state(shape=[7, n_in], blocksize=block)(stored)

    weight = open_checkpoint(changed(tmp_path, "transformers-nf4", write)).weight(f"{MODULE}.weight")
    dense = torch.tensor(CODES["NF4"])[q] * absmax.repeat_interleave(block)[: q.numel()].view(7, n_in)
    assert torch.equal(dequant.dense(weight), dense)


def setting(**changes: object) -> Callable[[dict[str, Any]], None]:
    return lambda config: config.update(changes)


def group(**changes: object) -> Callable[[dict[str, Any]], None]:
    return lambda config: config["config_groups"]["group_0"].update(changes)


def weights(**changes: object) -> Callable[[dict[str, Any]], None]:
    return lambda config: config["config_groups"]["group_0"]["weights"].update(changes)


SETTINGS = {
    "method that nobody knows": (GPTQ, setting(quant_method="zip"), "quant_method is 'zip', which is not supported"),
    "method of numbers": (GPTQ, setting(quant_method=3), "quant_method is 3, expected text"),
    "bits": (GPTQ, setting(bits=5), "bits is 5"),
    "bits of text": (GPTQ, setting(bits="4"), "bits is '4'"),
    "bits that the tensors are not of": (GPTQ, setting(bits=8), "has the shape"),
    "group size 0": (GPTQ, setting(group_size=0), "group_size is 0"),
    "group size that tensors are not of": (
        GPTQ,
        setting(group_size=64),
        r"scales has the shape \[4, 256\] instead of \[8, 256\]",
    ),
    "group size too small": (GPTQ, setting(group_size=8), "scales has the shape"),
    "marlin": (GPTQ, setting(checkpoint_format="marlin"), "checkpoint_format is marlin"),
    "dynamic": (GPTQ, setting(dynamic=[1]), "dynamic is no object"),
    "dynamic, no pattern": (GPTQ, setting(dynamic={"+:(": {"bits": 8}}), "dynamic has '\\+:\\('"),
    "AWQ of three bits": (AWQ, setting(bits=3), "bits is 3"),
    "AWQ for other kernels": (AWQ, setting(version="gemv"), "version is gemv"),
    "FP8, blocks": (FP8, setting(weight_block_size=[128]), r"weight_block_size is \[128\]"),
    "FP8, blocks of nothing": (FP8, setting(weight_block_size=[0, 128]), r"weight_block_size is \[0, 128\]"),
    "FP8, other blocks": (FP8, setting(weight_block_size=[64, 128]), "weight_scale_inv has the shape"),
    "no groups": (PACKED, setting(config_groups={}), "config_groups is missing"),
    "format": (PACKED, group(format="marlin-24"), "format is marlin-24"),
    "strategy": (PACKED, weights(strategy="sieve"), "strategy is sieve"),
    "type": (PACKED, weights(type="fixed"), "type is fixed"),
    "bits of nothing": (PACKED, weights(num_bits=0), "num_bits is 0"),
    "targets": (PACKED, group(targets="Linear"), "targets is no list"),
    "sparse": (PACKED, setting(sparsity_config={"format": "sparse-24-bitmask"}), "format is sparse-24-bitmask"),
    "turned activations": (
        PACKED,
        setting(transform_config={"config_groups": {"R4": {"type": "hadamard"}}}),
        "transform_config turns activations",
    ),
    "no target fits": (
        "llmcompressor-mixed",
        lambda config: config["config_groups"]["group_0"].update(targets=["re:.*nothing"]),
        "config_groups has no target that fits model.layers.0.self_attn",
    ),
    "a target is no pattern": (
        "llmcompressor-mixed",
        lambda config: config["config_groups"]["group_0"].update(targets=["re:("]),
        "has the target 're:\\(', which is no pattern",
    ),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_that_cannot_be_served(case: str, tmp_path: Path) -> None:
    name, change, message = SETTINGS[case]
    refused(changed(tmp_path, name, settings=change), message)


@pytest.mark.parametrize("name", [GPTQ, AWQ, FP8, PACKED, NF4])
def test_a_dense_model_that_says_it_is_quantised(name: str, tmp_path: Path) -> None:
    folder = changed(tmp_path, name)
    shutil.copy(models.quantized("tiny-base", of=".") / "model.safetensors", folder)
    refused(folder, "no tensor|no weight")


@pytest.mark.parametrize("name", [GPTQ, NF4, FP8])
def test_a_quantised_model_that_does_not_say_so(name: str, tmp_path: Path) -> None:
    folder = changed(tmp_path, name)
    shutil.copy(models.quantized("tiny-base", of=".") / "config.json", folder)
    refused(folder, "which is not supported")


def test_a_matrix_that_is_there_twice(tmp_path: Path) -> None:
    def add(stored: dict[str, Tensor]) -> None:
        stored[f"{MODULE}.weight"] = torch.zeros(256, 512)

    refused(changed(tmp_path, GPTQ, add), "both quantised and as it is")


def test_a_quantised_kv_cache_is_left_aside_and_said(tmp_path: Path, caplog) -> None:
    def add(stored: dict[str, Tensor]) -> None:
        stored["model.layers.0.self_attn.k_scale"] = torch.ones(1)
        stored["model.layers.0.self_attn.v_scale"] = torch.ones(1)

    folder = changed(tmp_path, "llmcompressor-fp8-dynamic", add, setting(kv_cache_scheme={"num_bits": 8, "type": "float"}))
    with caplog.at_level(logging.INFO):
        checkpoint = open_checkpoint(folder)
    assert set(checkpoint.names()) == set(open_checkpoint(models.quantized("llmcompressor-fp8-dynamic")).names())
    assert "kv_cache_scheme is left aside" in caplog.text


def test_zero_points_of_the_second_version_are_as_they_are(tmp_path: Path) -> None:
    name = "autoround-gptq-4-32-asym"
    first = open_checkpoint(models.quantized(name)).weight(f"{MODULE}.weight")
    second = open_checkpoint(changed(tmp_path, name, settings=setting(checkpoint_format="gptq_v2"))).weight(f"{MODULE}.weight")
    assert torch.equal(second.data, first.data) and torch.equal(second.zeros + 1, first.zeros)


def packed(values: Tensor, bits: int) -> Tensor:
    """[rows, n] -> int64 words [rows, n * bits / 32], without gaps, the lowest bits first."""
    streams = [sum(value << bits * i for i, value in enumerate(row)) for row in values.tolist()]
    return torch.tensor([[stream >> 32 * i & 0xFFFFFFFF for i in range(values.shape[1] * bits // 32)] for stream in streams])


ONES = {2: [0x55555555], 3: [0x24924924, 0x92492492, 0x49249249], 4: [0x11111111], 8: [0x01010101]}
"""What GPTQModel takes from the words of zero points (gptqmodel/utils/model.py), by bits."""
OF_GPTQMODEL = {"quantizer": ["gptqmodel:5.0.0"]}


@pytest.mark.parametrize(
    ("name", "bits", "meta"),
    [
        ("autoround-gptq-2-64-asym", 2, {}),
        ("autoround-gptq-3-64-sym", 3, OF_GPTQMODEL),
        ("autoround-gptq-4-32-asym", 4, {}),
        ("autoround-gptq-4-32-asym", 4, OF_GPTQMODEL),
        ("autoround-gptq-8-64-asym", 8, OF_GPTQMODEL),
    ],
)
def test_zero_points_of_any_value_are_as_gptqmodel_wrote_them(name: str, bits: int, meta: dict[str, Any], tmp_path: Path) -> None:
    """One is taken from whole words, so that those of 0 borrow from the next."""
    drawn: list[Tensor] = []

    def draw(stored: Tensor) -> Tensor:
        zeros = torch.randint(0, 1 << bits, (len(stored), 256), generator=torch.Generator().manual_seed(1))
        zeros[:, :3] = torch.tensor([0, 5 % (1 << bits), 0])
        drawn.append(zeros)
        ones = ONES[bits] * stored.shape[1]
        words = packed(zeros, bits) - torch.tensor(ones[: stored.shape[1]]) & 0xFFFFFFFF
        return (words - (words >> 31 << 32)).int()

    folder = changed(tmp_path, name, put("qzeros", draw), setting(meta=meta))
    weight = open_checkpoint(folder).weight(f"{MODULE}.weight")
    moved = 8 - (1 << bits - 1) if bits <= 4 else -(1 << bits - 1)
    assert torch.equal(weight.zeros.long(), drawn[0].T + moved)


def test_three_bits_of_other_tools_lack_one_each(tmp_path: Path) -> None:
    zeros = torch.arange(256).repeat(8, 1) % 7 + 1

    def write(stored: Tensor) -> Tensor:
        words = packed(zeros - 1, 3)
        return (words - (words >> 31 << 32)).int()

    weight = open_checkpoint(changed(tmp_path, "autoround-gptq-3-64-sym", put("qzeros", write))).weight(f"{MODULE}.weight")
    assert torch.equal(weight.zeros.long(), zeros.T + 4)


def test_modules_may_have_bits_and_groups_of_their_own(tmp_path: Path) -> None:
    """As GPTQModel's dynamic: one module of the model of four bits comes from that of eight."""
    other = load_file(models.quantized("autoround-gptq-8-64-asym") / "model.safetensors")

    def swap(stored: dict[str, Tensor]) -> None:
        stored.update({f"{MODULE}.{part}": other[f"{MODULE}.{part}"] for part in ("qweight", "qzeros", "scales", "g_idx")})

    own = {"-:.*lm_head": {}, r"+:.*\.0\..*down_proj": {"bits": 8, "group_size": 64}}
    checkpoint = open_checkpoint(changed(tmp_path, GPTQ, swap, setting(dynamic=own)))
    wide, narrow = (checkpoint.weight(f"model.layers.{i}.mlp.down_proj.weight") for i in range(2))
    assert (wide.qtype, wide.group, narrow.qtype, narrow.group) == ("INT8", 64, "INT4", 128)
    assert torch.allclose(dequant.dense(wide), expected("autoround-gptq-8-64-asym")[MODULE]["dense"], rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["autoround-gptq-4-128-sym", "autoround-awq-128-asym"])
def test_modules_of_auto_round_may_have_groups_of_their_own(name: str, tmp_path: Path) -> None:
    """In both of its layouts: extra_config names them."""

    def regroup(stored: dict[str, Tensor]) -> None:
        for part in ("scales", "qzeros"):
            stored[f"{MODULE}.{part}"] = stored[f"{MODULE}.{part}"].repeat_interleave(2, 0)
        stored.pop(f"{MODULE}.g_idx", None)

    def configure(config: dict[str, Any]) -> None:
        layout = "auto_awq" if "awq" in name else "auto_gptq"
        config.update(quant_method="auto-round", packing_format=f"auto_round:{layout}")
        config["extra_config"] = {MODULE: {"bits": 4, "group_size": config["group_size"] // 2}}

    checkpoint, before = open_checkpoint(changed(tmp_path, name, regroup, configure)), open_checkpoint(models.quantized(name))
    other = MODULE.replace("layers.0", "layers.1")
    for module in (MODULE, other):
        ours, theirs = (each.weight(f"{module}.weight") for each in (checkpoint, before))
        assert torch.equal(dequant.dense(ours), dequant.dense(theirs))
        assert ours.group * (2 if module == MODULE else 1) == theirs.group
    refused(
        changed(
            tmp_path,
            "autoround-awq-64-sym",
            settings=setting(quant_method="auto-round", packing_format="auto_round:auto_awq", extra_config=[1]),
        ),
        "dynamic is no object",
    )


def test_columns_of_older_llm_compressors(tmp_path: Path) -> None:
    """actorder group stored columns as they were with a weight_g_idx; newer versions do not write it any more."""
    name = "llmcompressor-w4a16-asym"
    order = torch.randperm(512, generator=torch.Generator().manual_seed(1))

    def permute(stored: dict[str, Tensor]) -> None:
        words = stored[f"{MODULE}.weight_packed"]
        values = torch.stack([words >> shift & 15 for shift in range(0, 32, 4)], -1).flatten(1)[:, order.argsort()]
        packed = sum(values[:, i::8].long() << 4 * i for i in range(8))
        stored[f"{MODULE}.weight_packed"] = (packed - (packed >> 31 << 32)).int()
        stored[f"{MODULE}.weight_g_idx"] = (order.argsort() // 128).int()

    weight = open_checkpoint(changed(tmp_path, name, permute)).weight(f"{MODULE}.weight")
    assert weight.order is not None
    assert torch.equal(dequant.dense(weight), expected(name)[MODULE]["dense"][:, order.argsort()])


@pytest.mark.parametrize("bits", [3, 5, 6, 7])
@pytest.mark.parametrize("has_gaps", [True, False])
def test_bits_that_do_not_divide_a_word_as_older_and_newer_llm_compressors_pack_them(
    bits: int, has_gaps: bool, tmp_path: Path
) -> None:
    """With the rest of each word unused, or without gaps; zero points too."""
    generator = torch.Generator().manual_seed(bits)
    q, zeros = (torch.randint(0, 1 << bits, shape, generator=generator) for shape in ((256, 512), (256, 4)))

    def words(values: Tensor) -> Tensor:
        of_word = 32 // bits
        if not has_gaps:
            made = packed(values, bits)
        else:
            padded = torch.nn.functional.pad(values, (0, -values.shape[1] % of_word)).unflatten(1, (-1, of_word))
            made = (padded << torch.arange(of_word) * bits).sum(-1)
        return (made - (made >> 31 << 32)).int()

    def write(stored: dict[str, Tensor]) -> None:
        for part in [part for part in stored if "weight_" in part and not part.startswith(f"{MODULE}.")]:
            del stored[part]  # others are of four bits
        stored[f"{MODULE}.weight_packed"] = words(q)
        stored[f"{MODULE}.weight_zero_point"] = words(zeros.T).T

    folder = changed(tmp_path, "llmcompressor-w4a16-asym", write, weights(num_bits=bits))
    checkpoint = SafetensorsCheckpoint(folder)
    weight = checkpoint.weight(f"{MODULE}.weight")
    scales = load_file(folder / "model.safetensors")[f"{MODULE}.weight_scale"].float()
    points = zeros.repeat_interleave(128, 1)
    assert torch.equal(dequant.dense(weight), (q - points) * scales.repeat_interleave(128, 1))


def test_groups_that_do_not_divide_the_columns_are_cut_smaller(tmp_path: Path) -> None:
    """The last group of a row has the rest: here 256 columns in groups of 96."""
    module = "model.layers.0.self_attn.k_proj"

    def regroup(stored: dict[str, Tensor]) -> None:
        for key in [key for key in stored if key.endswith((".scales", ".qzeros", ".g_idx"))]:
            rows = stored[key.rpartition(".")[0] + ".qweight"].shape[0] * 8
            n_groups = -(-rows // 96)
            if key.endswith(".g_idx"):
                stored[key] = (torch.arange(rows) // 96).int()
            else:
                stored[key] = stored[key][:1].repeat(n_groups, 1)
                if key.endswith(".scales"):
                    stored[key] *= torch.arange(1, n_groups + 1).unsqueeze(1)

    weight = open_checkpoint(changed(tmp_path, GPTQ, regroup, setting(group_size=96))).weight(f"{module}.weight")
    assert weight.group == 32
    factors = weight.scales / weight.scales[:, :1]
    assert torch.allclose(factors[0], torch.tensor([1.0, 1, 1, 2, 2, 2, 3, 3]))


def test_groups_that_no_weight_can_have_are_refused(tmp_path: Path) -> None:
    def regroup(stored: dict[str, Tensor]) -> None:
        for key in [key for key in stored if key.endswith((".scales", ".qzeros"))]:
            stored[key] = stored[key].repeat_interleave(8, 0)

    refused(changed(tmp_path, GPTQ, regroup, setting(group_size=16)), "a scale for each 16, but groups of multiples of 32")


def test_modelopt_multiplies_where_compressed_tensors_divides(tmp_path: Path) -> None:
    name = "llmcompressor-nvfp4"

    def rename(stored: dict[str, Tensor]) -> None:
        for key in list(stored):
            module, _, part = key.rpartition(".")
            if part == "weight_packed":
                stored[f"{module}.weight"] = stored.pop(key)
            elif part == "weight_global_scale":
                stored[f"{module}.weight_scale_2"] = (1 / stored.pop(key)).squeeze()
            elif part == "input_global_scale":
                stored[f"{module}.input_scale"] = stored.pop(key).squeeze()

    def configure(config: dict[str, Any]) -> None:
        config.clear()
        config.update(quant_method="modelopt", quant_algo="NVFP4", exclude_modules=["lm_head"])

    checkpoint = open_checkpoint(changed(tmp_path, name, rename, configure))
    for module, parts in expected(name).items():
        assert torch.allclose(dequant.dense(checkpoint.weight(f"{module}.weight")), parts["dense"], rtol=1e-6)


def test_modelopt_fp8(tmp_path: Path) -> None:
    name = "llmcompressor-fp8-static"

    def configure(config: dict[str, Any]) -> None:
        config.clear()
        config.update(quant_algo="FP8", exclude_modules=["lm_head"])

    checkpoint = open_checkpoint(changed(tmp_path, name, settings=configure))
    for module, parts in expected(name).items():
        assert torch.equal(dequant.dense(checkpoint.weight(f"{module}.weight")), parts["dense"])


def test_modelopt_in_a_file_of_its_own(tmp_path: Path) -> None:
    name = "llmcompressor-fp8-static"
    folder = changed(tmp_path, name, settings=lambda config: config.clear())
    beside = folder / "hf_quant_config.json"
    beside.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}))
    checkpoint = open_checkpoint(folder)
    for module, parts in expected(name).items():
        assert torch.equal(dequant.dense(checkpoint.weight(f"{module}.weight")), parts["dense"])
    beside.write_text(json.dumps({"quantization": {"quant_algo": "W4A8_AWQ"}}))
    refused(folder, r"hf_quant_config\.json: quantization: quant_algo is W4A8_AWQ")
    for damaged, message in (("[", "hf_quant_config"), ('{"quantization": 1}', "expected an object")):
        beside.write_text(damaged)
        refused(folder, message)
    beside.write_text(json.dumps({"quantization": {"quant_algo": None}}))
    refused(folder, "is of type F8_E4M3, which is not supported")
