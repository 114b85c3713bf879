"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): one latent per token is all heads' keys and values.

The matrix that would make keys and values of a latent is taken to the other side: queries go into the latent's space, where one
head of keys serves all of them, and what they mix of latents comes back as values. So the cache has rank + rope_dim numbers for a
token, whatever the number of heads.

Shapes: n tokens, h hidden size, H heads, R rope_dim, K key_dim, V value_dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kv.storage import Caches
from engine.models.operators import Operators
from engine.models.parts import Angles, Linear, Linears, Norm, Parameters, Vector
from engine.types import StepInputs
from engine.weights.config import LatentConfig, ModelConfig
from kernels.ops import DENSE, Weight
from kernels.reference import dequant

_EPS = 1e-6
"""Of the norms of latents, whatever the configuration says of the others; so the models were trained."""


class InOrder(Vector):
    """A parameter whose numbers are in another order than in the checkpoint."""

    def __init__(self, order: Tensor) -> None:
        super().__init__(len(order))
        self._order = order

    def fill(self, value: Tensor) -> bool:
        super().fill(value[self._order.to(value.device)])
        return False


class TurnedFirst(Linear):
    """A matrix whose rows, in each head, begin with those that turn, their pairs half a turn apart."""

    def __init__(self, ops: Operators, n_in: int, n_heads: int, kept: int, latent: LatentConfig, *, bias: bool = False) -> None:
        """kept: rows of a head that do not turn, and come first in the checkpoint."""
        size = kept + latent.rope_dim
        super().__init__(ops, n_in, n_heads * size, bias=bias)
        turned = torch.arange(kept, size)
        if latent.interleaved:
            turned = torch.cat((turned[::2], turned[1::2]))
        of_head = torch.cat((turned, torch.arange(kept)))
        self._order = (torch.arange(n_heads)[:, None] * size + of_head).flatten()
        if bias:
            self.bias = InOrder(self._order)

    def fill(self, value: Weight, *, same: Linear | None = None) -> bool:
        super().fill(value.map(lambda tensor: tensor[self._order.to(tensor.device)]))
        return False


class HeadMatrices:
    """kv_b_proj, the matrix of keys and values of a latent, for each head by itself and on both sides of attention.

    into [H, K, rank] takes queries into the latent's space; out_of [H, rank, V] takes what they mix out of it. Both are dense, in
    the dtype that the checkpoint has, or in float32 where it is quantised, for rows of one become columns of the other.
    """

    def __init__(self, ops: Operators, n_heads: int, latent: LatentConfig) -> None:
        self.shape = (n_heads * (latent.key_dim + latent.value_dim), latent.rank)
        self.into: Tensor | None = None
        self.out_of: Tensor | None = None
        self._ops = ops
        self._n_heads, self._latent = n_heads, latent

    def fill(self, value: Weight) -> bool:
        qtype = value.qtype if value.qtype in DENSE else "F32"
        dense = value.data if value.qtype in DENSE else dequant.dense(value)
        of_heads = dense.view(self._n_heads, -1, self._latent.rank)
        keys, values = of_heads.split((self._latent.key_dim, self._latent.value_dim), 1)
        self.into, self.out_of = keys.contiguous(), values.mT.contiguous()
        self._fn = self._ops.use(self._ops.find("heads_linear", qtype=qtype))
        return False

    def enter(self, q: Tensor) -> Tensor:
        """[n, H, R + K] -> [n, H, R + rank]"""
        return self._fn(q, self.into, self._latent.rope_dim)

    def leave(self, mixed: Tensor) -> Tensor:
        """[n, H, rank] -> [n, H, V]"""
        return self._fn(mixed, self.out_of)


class LatentAttention:
    """A Mixer. Dims that turn come first in queries and keys; the latent, behind them, is the values."""

    def __init__(self, config: ModelConfig, ops: Operators, layer: int) -> None:
        size, n_heads, latent, bias = config.hidden_size, config.n_heads, config.latent, config.attention_bias
        self._n_heads, self._latent = n_heads, latent
        self.q_a = Linear(ops, size, latent.q_rank, bias=bias) if latent.q_rank else None
        self.q_norm = Norm(ops, latent.q_rank, _EPS) if latent.q_rank else None
        self.q = TurnedFirst(ops, latent.q_rank or size, n_heads, latent.key_dim, latent)
        self.kv = TurnedFirst(ops, size, 1, latent.rank, latent, bias=bias)
        self.kv_norm = Norm(ops, latent.rank, _EPS)
        self.heads = HeadMatrices(ops, n_heads, latent)
        self.o = Linear(ops, n_heads * latent.value_dim, size, bias=config.attention_output_bias)
        self._inputs = Linears(ops, self.q_a or self.q, self.kv)
        self._settings = (config.attention_scale, config.windows[layer], config.attn_soft_cap)
        sizes = {"head_size": latent.rope_dim + latent.rank, "value_size": latent.rank}
        self._write = ops.get_cached("rope_and_write_kv", **sizes)
        self._attend = ops.get_cached(
            "paged_attention", **sizes, window=config.windows[layer] > 0, soft_cap=config.attn_soft_cap > 0
        )

    def __call__(self, x: Tensor, angles: Angles, inputs: StepInputs, caches: Caches) -> Tensor:
        """[n, h] -> [n, h]; writes the step's latents into the cache."""
        q, kv = self._inputs(x)
        if self.q_norm:
            q = self.q(self.q_norm(q))
        q = self.heads.enter(q.unflatten(1, (self._n_heads, -1)))
        turned = self._latent.rope_dim
        k, latent = kv[:, :turned].unsqueeze(1), self.kv_norm(kv[:, turned:]).unsqueeze(1)
        k_cache, v_cache, scales = caches
        q = self._write(q, k, latent, *angles, k_cache, None, inputs.slots, scales)
        tables = inputs.query_starts, inputs.context_lens, inputs.block_tables
        mixed = self._attend(q, k_cache, v_cache, *tables, *self._settings, scales)
        return self.o(self.heads.leave(mixed).flatten(1))

    def parameters(self, name: str) -> Parameters:
        if self.q_a:
            yield from self.q_a.parameters(f"{name}.q_a_proj")
            yield from self.q_norm.parameters(f"{name}.q_a_layernorm")
        yield from self.q.parameters(f"{name}.q_b_proj" if self.q_a else f"{name}.q_proj")
        yield from self.kv.parameters(f"{name}.kv_a_proj_with_mqa")
        yield from self.kv_norm.parameters(f"{name}.kv_a_layernorm")
        yield f"{name}.kv_b_proj.weight", self.heads
        yield from self.o.parameters(f"{name}.o_proj")
