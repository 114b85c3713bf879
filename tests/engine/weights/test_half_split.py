"""Heads in neighbouring pairs come out of a checkpoint in halves, whatever the weights' type."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from engine.weights.config import RopeConfig
from engine.weights.half_split import half_split, in_half_split_order
from kernels.conformance_weights import random_weight
from kernels.ops import QTYPES, Weight
from kernels.reference import dequant

N_HEADS, N_KV_HEADS, HEAD = 4, 2, 16
Q, K, V = (f"model.layers.7.self_attn.{part}_proj" for part in "qkv")


class Held:
    """A checkpoint of tensors in memory."""

    kind = "held"

    def __init__(self, family: str, rotary_dim: int, tensors: dict[str, Weight | Tensor]) -> None:
        ropes = (RopeConfig(1e4, rotary_dim),)
        self.config = SimpleNamespace(family=family, n_heads=N_HEADS, n_kv_heads=N_KV_HEADS, distinct_ropes=ropes)
        self.weight = self.vector = tensors.__getitem__


def _expected(rows: Tensor, rotary_dim: int) -> Tensor:
    heads = []
    for head in rows.split(HEAD):
        turned, rest = head[:rotary_dim], head[rotary_dim:]
        heads += [turned[0::2], turned[1::2], rest]
    return torch.cat(heads)


@pytest.mark.parametrize("rotary_dim", [16, 8, 2])
@pytest.mark.parametrize("qtype", QTYPES)
def test_rows_of_q_and_k_move_as_wholes(qtype: str, rotary_dim: int) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = {
        f"{name}.weight": random_weight(qtype, n * HEAD, 256, generator)
        for name, n in ((Q, N_HEADS), (K, N_KV_HEADS), (V, N_KV_HEADS))
    }
    checkpoint = in_half_split_order(Held("glm4", rotary_dim, weights))
    for name, weight in weights.items():
        given, kept = checkpoint.weight(name), dequant.dense(weight)
        assert given.qtype == qtype
        assert torch.equal(dequant.dense(given), kept if name.startswith(V) else _expected(kept, rotary_dim))


def test_biases_and_norms_of_heads_move_with_the_rows() -> None:
    bias, norm = torch.randn(N_HEADS * HEAD), torch.randn(N_HEADS, HEAD)
    held = {f"{Q}.bias": bias, "model.layers.0.self_attn.q_norm.weight": Weight("F32", (N_HEADS, HEAD), norm)}
    checkpoint = in_half_split_order(Held("cohere", HEAD, held))
    assert torch.equal(checkpoint.vector(f"{Q}.bias"), _expected(bias, HEAD))
    moved = checkpoint.weight("model.layers.0.self_attn.q_norm.weight").data
    assert torch.equal(moved, torch.stack([_expected(of_head, HEAD) for of_head in norm]))


def test_other_families_keep_their_checkpoint() -> None:
    held = Held("llama", HEAD, {})
    assert in_half_split_order(held) is held
    assert in_half_split_order(Held("cohere2", HEAD, {})).kind == "held"


def test_scores_are_the_same_in_both_orders() -> None:
    q, k, angle = torch.randn(HEAD), torch.randn(HEAD), torch.rand(HEAD // 2) * 6
    pairs = [torch.view_as_complex(x.view(-1, 2)) * torch.polar(torch.ones_like(angle), angle * n) for n, x in ((9, q), (4, k))]
    halves = [
        torch.complex(*half_split(x, 1, HEAD).chunk(2)) * torch.polar(torch.ones_like(angle), angle * n)
        for n, x in ((9, q), (4, k))
    ]
    scores = [(a * b.conj()).real.sum() for a, b in (pairs, halves)]
    torch.testing.assert_close(*scores)
