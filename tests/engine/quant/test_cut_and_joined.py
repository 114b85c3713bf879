"""Quantised matrices of the formats' own tools, cut and joined by rows as layers of some families want them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ModelLoadError
from engine.quant import on_load
from engine.quant.dense import WORKING_BYTES
from engine.weights.arranged import ArrangedCheckpoint, Arrangement, Piece
from engine.weights.half_split import half_split
from engine.weights.loader import open_checkpoint
from engine.weights.packed import making_bytes
from engine.weights.safetensors import SafetensorsCheckpoint
from kernels.ops import ZEROS
from kernels.reference.dequant import dense
from tests import models
from tests.engine.quant.checkpoints import EVERY
from tests.engine.quant.test_refusals import changed

Q, K = (f"model.layers.0.self_attn.{part}_proj.weight" for part in "qk")
ORDER = torch.tensor([7, 3, 200, 3, 0])


def arranged(folder: Path, name: str, *pieces: Piece) -> ArrangedCheckpoint:
    stored = SafetensorsCheckpoint(folder)
    n_rows = sum(len(torch.arange(stored.shape(piece.stored)[0])[piece.rows]) for piece in pieces)
    return ArrangedCheckpoint(stored, {name: Arrangement((n_rows, 256), pieces)})


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("rows", [slice(32, 96), ORDER, slice(1, 128, 2)], ids=["a slice", "any", "each second"])
def test_rows_of_any_format_are_those_rows(name: str, rows: slice | torch.Tensor) -> None:
    cut = arranged(models.quantized(name), "cut", Piece(Q, rows), Piece(Q, slice(0, 1)))
    whole = dense(cut.stored.weight(Q))
    assert torch.equal(dense(cut.weight("cut")), torch.cat((whole[rows], whole[:1])))


@pytest.mark.parametrize("name", EVERY)
def test_rows_of_any_format_are_put_into_another_order(name: str) -> None:
    """As half_split and latent.TurnedFirst do it."""
    weight = SafetensorsCheckpoint(models.quantized(name)).weight(Q)
    order = torch.randperm(256, generator=torch.Generator().manual_seed(1))
    moved = weight.map(lambda tensor: tensor[order])
    assert torch.equal(dense(moved), dense(weight)[order])
    turned = weight.map(lambda tensor: half_split(tensor, 4, 32))
    assert torch.equal(dense(turned), half_split(dense(weight), 4, 32))


def test_columns_in_an_order_of_their_own_are_refused_only_where_matrices_are_joined() -> None:
    folder = models.quantized("autoround-gptq-4-act-order")
    assert arranged(folder, "cut", Piece(Q, slice(0, 64))).weight("cut").order is not None
    for name, pieces in (("joined", (Piece(Q, slice(None)), Piece(K, slice(None)))), ("a.experts.b", (Piece(Q, slice(0, 64)),))):
        with pytest.raises(ModelLoadError, match="are in an order of their own"):
            arranged(folder, name, *pieces).weight(name)


@pytest.mark.parametrize("name", ["autoround-gptq-4-128-sym", "autoround-gptq-8-128-sym"])
@pytest.mark.parametrize("which", [Q, K], ids=["first", "second"])
def test_zero_points_that_only_some_parts_have(name: str, which: str, tmp_path: Path) -> None:
    """Whether a part has them depends on its values: formats leave out those that are all in the middle."""
    module = which.removesuffix(".weight")

    def move(stored: dict[str, torch.Tensor]) -> None:
        stored[f"{module}.qzeros"] = stored[f"{module}.qzeros"] + 1

    joined = arranged(changed(tmp_path, name, move), "joined", Piece(Q, slice(None)), Piece(K, slice(None)))
    parts = [joined.stored.weight(part) for part in (Q, K)]
    assert sorted(part.zeros is None for part in parts) == [False, True]
    weight = joined.weight("joined")
    assert weight.zeros.dtype == ZEROS[weight.qtype]
    assert torch.equal(dense(weight), torch.cat([dense(part) for part in parts]))


@pytest.mark.parametrize(
    ("name", "n_copies"),
    [
        ("autoround-gptq-4-act-order", 4),
        ("autoround-awq-128-asym", 3),
        ("autoround-gptq-8-64-asym", 2),
        ("transformers-nf4", 2),
        ("transformers-fp8-block", 0),
        ("tiny-base", 0),
    ],
)
def test_only_one_stored_tensor_is_unpacked_at_a_time(name: str, n_copies: int) -> None:
    folder = models.quantized("tiny-base", of=".") if name == "tiny-base" else models.quantized(name)
    joined = arranged(folder, "joined", Piece(K, slice(None)), Piece(Q, slice(None)), Piece(K, slice(None)))
    assert joined.unpacking_bytes("joined") == joined.stored.unpacking_bytes(Q) == n_copies * 256 * 256
    assert making_bytes(joined, "joined") == joined.stored_bytes("joined") + n_copies * 256 * 256


def test_a_matrix_that_is_quantised_on_load_is_never_whole_in_float32() -> None:
    made = on_load.opened(open_checkpoint(models.quantized("tiny-base", of=".")), EngineConfig(quantization="int4"))
    assert 0 < making_bytes(made, Q) - made.stored_bytes(Q) <= WORKING_BYTES
    assert making_bytes(made, "model.norm.weight") == made.stored_bytes("model.norm.weight")
