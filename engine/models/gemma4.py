"""Gemma 4 (text): layers with a window and layers of all tokens have heads of their own, and the last ones read earlier keys.

Norms are around attention and MLP on both sides, and on each head of q, k and v; v may be k before its norm. Each layer ends with
a factor. Small models give each layer an embedding of the token of its own; large ones have experts beside the MLP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engine.kv.storage import Caches, GroupStorage
from engine.models.decoder import Decoder
from engine.models.experts import Experts
from engine.models.operators import Operators
from engine.models.parts import MLP, Angles, Embedding, Linear, Linears, Norm, Parameters, Vector
from engine.types import StepInputs
from engine.weights.config import ModelConfig
from engine.weights.loader import Slot


class Scaled(Norm):
    """A norm whose weight is taken times a factor."""

    def __init__(self, ops: Operators, size: int, eps: float, factor: float) -> None:
        super().__init__(ops, size, eps)
        self._factor = factor

    def fill(self, value: Tensor) -> bool:
        super().fill(value * self._factor)
        return False


class Number(Vector):
    """A parameter of one number."""

    def __init__(self) -> None:
        super().__init__(1)

    def fill(self, value: Tensor) -> bool:
        self.number = value.item()
        return False


class Attention:
    """A Mixer; of a layer that reads the keys and values of another it has queries only."""

    def __init__(self, config: ModelConfig, ops: Operators, layer: int) -> None:
        size, n_heads, shape, bias = config.hidden_size, config.n_heads, config.kv_shape(layer), config.attention_bias
        self._dim, own = shape.key_dim, config.kv_source(layer) == layer
        self.q = Linear(ops, size, n_heads * self._dim, bias=bias)
        self.k = Linear(ops, size, shape.n_heads * self._dim, bias=bias) if own else None
        self.v = Linear(ops, size, shape.n_heads * self._dim, bias=bias) if own and not config.values_are_keys[layer] else None
        self.o = Linear(ops, n_heads * self._dim, size, bias=bias)
        self.q_norm = Norm(ops, self._dim, config.rms_eps)
        self.k_norm = Norm(ops, self._dim, config.rms_eps) if own else None
        self.v_norm = Norm(ops, self._dim, config.rms_eps) if own else None
        if own:
            self.v_norm.fill(torch.ones(self._dim, device=ops.device))
        self._inputs = Linears(ops, *(part for part in (self.q, self.k, self.v) if part))
        self._settings = config.attention_scale, config.windows[layer]
        self._write = ops.get_cached("rope_and_write_kv", self._dim)
        self._attend = ops.get_cached("paged_attention", self._dim, window=config.windows[layer] > 0)

    def __call__(self, x: Tensor, angles: Angles, inputs: StepInputs, caches: Caches) -> Tensor:
        """[n, h] -> [n, h]; writes the step's keys and values into the caches, if they are its own."""
        q, *kv = (rows.unflatten(-1, (-1, self._dim)) for rows in self._inputs(x))
        q, k, v = self.q_norm(q), None, None
        if kv:
            k, v = self.k_norm(kv[0]), self.v_norm(kv[-1])
        k_cache, v_cache, scales = caches
        q = self._write(q, k, v, *angles, k_cache, v_cache, inputs.slots, scales)
        tables = inputs.query_starts, inputs.context_lens, inputs.block_tables
        return self.o(self._attend(q, k_cache, v_cache, *tables, *self._settings, 0.0, scales).flatten(1))

    def parameters(self, name: str) -> Parameters:
        for part, matrix in (("q", self.q), ("k", self.k), ("v", self.v), ("o", self.o)):
            if matrix:
                yield from matrix.parameters(f"{name}.{part}_proj")
        yield from self.q_norm.parameters(f"{name}.q_norm")
        if self.k_norm:
            yield from self.k_norm.parameters(f"{name}.k_norm")


class Router:
    """Which experts a token goes to: by its state, normed and times a scale; an expert's gain has a factor."""

    def __init__(self, config: ModelConfig, ops: Operators) -> None:
        size, experts = config.hidden_size, config.experts
        self._routing = experts.routing
        self.norm = Scaled(ops, size, config.rms_eps, size**-0.5)
        self.matrix = Linear(ops, size, experts.n_experts)
        self.factors = Vector(experts.n_experts)
        self._route = ops.get("route")

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[n, h] -> ids int32 [n, k], gains float32 [n, k]"""
        return self._route(self.matrix(self.norm(x)), None, self._routing, self.factors.value)

    def parameters(self, name: str) -> Parameters:
        yield f"{name}.scale", self.norm
        yield from self.matrix.parameters(f"{name}.proj")
        yield f"{name}.per_expert_scale", self.factors


class FeedForward:
    """An MLP and, in models with experts, these beside it, each with norms of its own, on what came before the MLP's norm."""

    def __init__(self, config: ModelConfig, ops: Operators, width: int, norm: Callable[[], Norm]) -> None:
        self.mlp = MLP(replace(config, intermediate_size=width), ops)
        self.norm, self.output_norm = norm(), norm()
        self.experts = Experts(config, ops) if config.experts else None
        if self.experts:
            self.router, self._add = Router(config, ops), ops.get("add_gated")
            self.mlp_output_norm, self.experts_norm, self.experts_output_norm = norm(), norm(), norm()

    def __call__(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        x, residual = self.norm.add(x, residual)
        out = self.mlp(x)
        if self.experts:
            of_experts = self.experts(self.experts_norm(residual), *self.router(residual))
            out = self._add(self.mlp_output_norm(out), self.experts_output_norm(of_experts), None)
        return self.output_norm(out), residual

    def parameters(self, name: str) -> Parameters:
        yield from self.mlp.parameters(f"{name}.mlp")
        yield from self.norm.parameters(f"{name}.pre_feedforward_layernorm")
        yield from self.output_norm.parameters(f"{name}.post_feedforward_layernorm")
        if self.experts:
            yield from self.router.parameters(f"{name}.router")
            yield from self.experts.parameters(f"{name}.experts")
            yield from self.mlp_output_norm.parameters(f"{name}.post_feedforward_layernorm_1")
            yield from self.experts_output_norm.parameters(f"{name}.post_feedforward_layernorm_2")
            yield from self.experts_norm.parameters(f"{name}.pre_feedforward_layernorm_2")


class TokenInput:
    """What a layer adds of the token's embedding for it: norm(projection(GELU(gate(x)) * embedding))."""

    def __init__(self, config: ModelConfig, ops: Operators, norm: Callable[[], Norm]) -> None:
        self.gate = Linear(ops, config.hidden_size, config.layer_input_size)
        self.projection = Linear(ops, config.layer_input_size, config.hidden_size)
        self.norm = norm()
        self._activate = ops.get(f"{config.activation}_mul")

    def __call__(self, x: Tensor, of_token: Tensor) -> Tensor:
        return self.norm(self.projection(self._activate(self.gate(x), of_token)))

    def parameters(self, name: str) -> Parameters:
        yield from self.gate.parameters(f"{name}.per_layer_input_gate")
        yield from self.projection.parameters(f"{name}.per_layer_projection")
        yield from self.norm.parameters(f"{name}.post_per_layer_input_norm")


class Layer:
    def __init__(self, config: ModelConfig, ops: Operators, i: int, norm: Callable[[], Norm]) -> None:
        self.input_norm, self.attention, self.attention_norm = norm(), Attention(config, ops, i), norm()
        is_wide = config.kv_source(i) != i and config.wide_where_shared
        self.feed_forward = FeedForward(config, ops, config.intermediate_size * (2 if is_wide else 1), norm)
        self.token_input = TokenInput(config, ops, norm) if config.layer_input_size else None
        self.factor = Number()
        self._add, self._add_scaled = ops.get("add_gated"), ops.get("add_scaled")

    def __call__(self, x: Tensor, angles: Angles, inputs: StepInputs, caches: Caches, of_token: Tensor | None) -> Tensor:
        """[n, h] -> [n, h]; of_token: the token's embedding for this layer, [n, layer_input_size]."""
        attended = self.attention_norm(self.attention(self.input_norm(x), angles, inputs, caches))
        out, x = self.feed_forward(attended, x)
        if self.token_input:
            x = self._add(x, out, None)
            out = self.token_input(x, of_token)
        return self._add_scaled(x, out, self.factor.number)

    def parameters(self, name: str) -> Parameters:
        yield from self.input_norm.parameters(f"{name}.input_layernorm")
        yield from self.attention.parameters(f"{name}.self_attn")
        yield from self.attention_norm.parameters(f"{name}.post_attention_layernorm")
        yield from self.feed_forward.parameters(name)
        if self.token_input:
            yield from self.token_input.parameters(name)
        yield f"{name}.layer_scalar", self.factor


class Gemma4(Decoder):
    """Its layers return the residual stream whole."""

    layers: Sequence[Layer]

    def __init__(self, config: ModelConfig, ops: Operators, max_model_len: int, layers: Sequence[Layer], norm: Norm) -> None:
        super().__init__(config, ops, max_model_len, layers, norm)
        size, n_inputs = config.layer_input_size, config.n_layers * config.layer_input_size
        self._add = ops.get("add_gated")
        if size:
            # The sum of both is halved in power: their factors have the root of a half. What the projection has is in eps.
            half = 0.5**0.5
            self.token_inputs = Embedding(ops, config.layer_input_vocab, n_inputs, scale=size**0.5 * half)
            self.projection = Linear(ops, config.hidden_size, n_inputs)
            self.projection_norm = Scaled(ops, size, config.rms_eps * config.hidden_size, half)

    def parameters(self) -> dict[str, Slot]:
        slots = super().parameters()
        if self.config.layer_input_size:
            slots["model.embed_tokens_per_layer.weight"] = self.token_inputs
            slots.update(self.projection.parameters("model.per_layer_model_projection"))
            slots.update(self.projection_norm.parameters("model.per_layer_projection_norm"))
        return slots

    def forward(self, inputs: Sequence[StepInputs], kv: GroupStorage) -> Tensor:
        positions, size = inputs[0].positions, self.config.layer_input_size
        x, of_tokens = self.embedding(inputs[0].token_ids), None
        if size:
            projected = self.projection_norm(self.projection(x).unflatten(1, (-1, size))).flatten(1)
            of_tokens = self._add(projected, self.token_inputs(inputs[0].token_ids), None)
        for i, layer in enumerate(self.layers):
            of_token = of_tokens[:, i * size : (i + 1) * size] if size else None
            x = layer(x, (positions, *self._angles[i]), inputs[kv.group(i)], kv.layer(i), of_token)
        return self.norm(x)


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Gemma4:
    def norm() -> Norm:
        return Norm(ops, config.hidden_size, config.rms_eps)

    return Gemma4(config, ops, max_model_len, [Layer(config, ops, i, norm) for i in range(config.n_layers)], norm())
