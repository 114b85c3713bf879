"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): one latent per token is all heads' keys and values.

The matrix that would make keys and values of a latent is taken to the other side: queries go into the latent's space, where one
head of keys serves all of them, and what they mix of latents comes back as values. So the cache has rank + rope_dim numbers for a
token, whatever the number of heads.

Shapes: n tokens, h hidden size, H heads, R rope_dim, K key_dim, V value_dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from engine.kv.storage import Caches
from engine.models.operators import Operators
from engine.models.parts import Angles, Linear, Linears, Norm, Parameters, Vector
from engine.types import StepInputs
from engine.weights.checkpoint import Checkpoint
from engine.weights.config import LatentConfig, ModelConfig
from kernels.ops import DENSE, Weight
from kernels.reference import dequant

_EPS = 1e-6
"""Of the norms of latents, whatever the configuration says of the others; so the models were trained."""
_MADE_DENSE = tuple(f".self_attn.{part}_b_proj.weight" for part in ("kv", "k", "v"))


def widened_bytes(checkpoint: Checkpoint) -> int:
    """What matrices that are made dense, in float32, take beyond what a quantised checkpoint has."""
    sizes = (
        (math.prod(checkpoint.shape(name)), checkpoint.stored_bytes(name))
        for name in checkpoint.names()
        if name.endswith(_MADE_DENSE)
    )
    return sum(4 * n - stored for n, stored in sizes if stored < 2 * n)


class InOrder(Vector):
    """A parameter whose numbers are in another order than in the checkpoint."""

    def __init__(self, n: int, order: Callable[[], Tensor]) -> None:
        super().__init__(n)
        self._order = order

    def fill(self, value: Tensor) -> bool:
        super().fill(value[self._order().to(value.device)])
        return False


class TurnedFirst(Linear):
    """A matrix whose rows, in each head, begin with those that turn, their pairs half a turn apart."""

    def __init__(self, ops: Operators, n_in: int, n_heads: int, kept: int, latent: LatentConfig, *, bias: bool = False) -> None:
        """kept: rows of a head that do not turn, and come first in the checkpoint."""
        size = kept + latent.rope_dim
        super().__init__(ops, n_in, n_heads * size, bias=bias)
        self._heads = n_heads, size, kept
        self._interleaved = latent.interleaved
        if bias:
            self.bias = InOrder(n_heads * size, self._order)

    def _order(self) -> Tensor:
        """Made when it is used: by then it is known that the file has so many rows."""
        n_heads, size, kept = self._heads
        turned = torch.arange(kept, size)
        if self._interleaved:
            turned = torch.cat((turned[::2], turned[1::2]))
        of_head = torch.cat((turned, torch.arange(kept)))
        return (torch.arange(n_heads)[:, None] * size + of_head).flatten()

    def fill(self, value: Weight, *, same: Linear | None = None) -> bool:
        order = self._order()
        super().fill(value.map(lambda tensor: tensor[order.to(tensor.device)]))
        return False


class HeadMatrices:
    """A matrix for each head, [H, in, out], dense: in the dtype that the checkpoint has, or float32 where it is quantised."""

    def __init__(self, ops: Operators) -> None:
        self.value: Tensor | None = None
        self._ops = ops
        self._fn: Callable[..., Tensor] | None = None

    def take(self, value: Tensor) -> None:
        self.value = value.contiguous()
        qtype = next(qtype for qtype, dtype in DENSE.items() if dtype == value.dtype)
        self._fn = self._ops.use(self._ops.find("heads_linear", qtype=qtype))

    def __call__(self, x: Tensor, kept: int = 0) -> Tensor:
        """[n, H, kept + in] -> [n, H, kept + out]"""
        return self._fn(x, self.value, kept)


class Parted:
    """A Slot for a matrix whose rows are those of each head in turn; give() takes them as [H, rows of a head, in]."""

    def __init__(self, n_heads: int, n_rows: int, n_in: int, give: Callable[[Tensor], None]) -> None:
        self.shape = (n_heads * n_rows, n_in)
        self._n_heads, self._give = n_heads, give

    def fill(self, value: Weight) -> bool:
        dense = value.data if value.qtype in DENSE else dequant.dense(value)
        self._give(dense.view(self._n_heads, -1, self.shape[1]))
        return False


class Latents:
    """kv_b_proj, the matrix of keys and values of a latent, on both sides of attention."""

    def __init__(self, ops: Operators, n_heads: int, latent: LatentConfig) -> None:
        self.into = HeadMatrices(ops)
        """[H, K, rank]: takes queries into the latent's space."""
        self.out_of = HeadMatrices(ops)
        """[H, rank, V]: takes what they mix out of it."""
        self._n_heads, self._latent = n_heads, latent

    def _take_both(self, rows: Tensor) -> None:
        keys, values = rows.split((self._latent.key_dim, self._latent.value_dim), 1)
        self.into.take(keys)
        self.out_of.take(values.mT)

    def parameters(self, name: str) -> Parameters:
        latent, n_heads = self._latent, self._n_heads
        if latent.in_two:
            turned = Parted(n_heads, latent.rank, latent.key_dim, lambda rows: self.into.take(rows.mT))
            yield f"{name}.k_b_proj.weight", turned
            yield (
                f"{name}.v_b_proj.weight",
                Parted(n_heads, latent.value_dim, latent.rank, lambda rows: self.out_of.take(rows.mT)),
            )
        else:
            yield f"{name}.kv_b_proj.weight", Parted(n_heads, latent.key_dim + latent.value_dim, latent.rank, self._take_both)


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
        self.latents = Latents(ops, n_heads, latent)
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
        turned = self._latent.rope_dim
        q = self.latents.into(q.unflatten(1, (self._n_heads, -1)), turned)
        k, latent = kv[:, :turned].unsqueeze(1), self.kv_norm(kv[:, turned:]).unsqueeze(1)
        k_cache, v_cache, scales = caches
        q = self._write(q, k, latent, *angles, k_cache, None, inputs.slots, scales)
        tables = inputs.query_starts, inputs.context_lens, inputs.block_tables
        mixed = self._attend(q, k_cache, v_cache, *tables, *self._settings, scales)
        return self.o(self.latents.out_of(mixed).flatten(1))

    def parameters(self, name: str) -> Parameters:
        if self.q_a:
            yield from self.q_a.parameters(f"{name}.q_a_proj")
            yield from self.q_norm.parameters(f"{name}.q_a_layernorm")
        yield from self.q.parameters(f"{name}.q_b_proj" if self.q_a else f"{name}.q_proj")
        yield from self.kv.parameters(f"{name}.kv_a_proj_with_mqa")
        yield from self.kv_norm.parameters(f"{name}.kv_a_layernorm")
        yield from self.latents.parameters(name)
        yield from self.o.parameters(f"{name}.o_proj")
