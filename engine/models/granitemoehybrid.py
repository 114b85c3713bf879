"""Granite 4: Mamba-2 layers with a few of attention among them, an MLP in every layer and in most models experts beside it.

Attention's heads are not turned in most models; what a layer adds to the residual stream has a factor.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from engine.models.decoder import Decoder
from engine.models.experts import SparseMLP
from engine.models.operators import Operators
from engine.models.parts import MLP, Attention, Block, Norm, Parameters
from engine.models.recurrent import Mamba2
from engine.weights.config import ModelConfig


class SharedMLP:
    """An MLP alone, under the name that it has beside experts."""

    def __init__(self, config: ModelConfig, ops: Operators) -> None:
        self._mlp = MLP(config, ops)

    def __call__(self, x: Tensor) -> Tensor:
        return self._mlp(x)

    def parameters(self, name: str) -> Parameters:
        yield from self._mlp.parameters(f"{name}.shared_expert")


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Decoder:
    """The residual stream is kept divided by the factor of what is added to it, so that no sum needs one: its norms see the same
    when their epsilon is divided by the factor's square.
    """
    factor = config.residual_scale
    divided = replace(config, embedding_scale=config.embedding_scale / factor)

    def norm() -> Norm:
        return Norm(ops, config.hidden_size, config.rms_eps / factor**2)

    def layer(i: int) -> Block:
        recurrent = config.recurrent
        if recurrent and i in recurrent.layers:
            mixer, name = Mamba2(config, ops, bias=recurrent.bias, conv_bias=recurrent.conv_bias), "mamba"
        else:
            mixer = Attention(config, ops, i, bias=config.attention_bias, output_bias=config.attention_output_bias)
            name = "self_attn"
        return Block(mixer, SparseMLP(config, ops) if config.experts else SharedMLP(config, ops), norm, mixer_name=name)

    return Decoder(divided, ops, max_model_len, [layer(i) for i in range(config.n_layers)], norm())
