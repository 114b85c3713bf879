"""Granite 4: Mamba-2 layers with a few of attention among them, an MLP in every layer and in most models experts beside it.

Attention's heads are not turned in most models; what a layer adds to the residual stream has a factor.
"""

from __future__ import annotations

from torch import Tensor

from engine.models.decoder import Decoder
from engine.models.experts import FeedForward, SparseMLP
from engine.models.operators import Operators
from engine.models.parts import MLP, Angles, Attention, Block, Mixer, Norm, Parameters
from engine.models.recurrent import Mamba2
from engine.types import StepInputs
from engine.weights.config import ModelConfig


class ScaledMixer:
    """What a mixer returns, by a factor."""

    def __init__(self, mixer: Mixer, factor: float) -> None:
        self._mixer, self._factor = mixer, factor

    def __call__(self, x: Tensor, angles: Angles, inputs: StepInputs, caches: tuple) -> Tensor:
        return self._mixer(x, angles, inputs, caches).mul_(self._factor)

    def parameters(self, name: str) -> Parameters:
        yield from self._mixer.parameters(name)


class ScaledMLP:
    """What an MLP or experts return, by a factor. An MLP alone has the name that it has beside experts."""

    def __init__(self, mlp: FeedForward, factor: float) -> None:
        self._mlp, self._factor = mlp, factor

    def __call__(self, x: Tensor) -> Tensor:
        return self._mlp(x).mul_(self._factor)

    def parameters(self, name: str) -> Parameters:
        yield from self._mlp.parameters(name if isinstance(self._mlp, SparseMLP) else f"{name}.shared_expert")


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Decoder:
    def norm() -> Norm:
        return Norm(ops, config.hidden_size, config.rms_eps)

    def layer(i: int) -> Block:
        recurrent = config.recurrent
        if recurrent and i in recurrent.layers:
            mixer, name = Mamba2(config, ops, bias=recurrent.bias, conv_bias=recurrent.conv_bias), "mamba"
        else:
            mixer = Attention(config, ops, i, bias=config.attention_bias, output_bias=config.attention_output_bias)
            name = "self_attn"
        mlp = SparseMLP(config, ops) if config.experts else MLP(config, ops)
        factor = config.residual_scale
        return Block(ScaledMixer(mixer, factor), ScaledMLP(mlp, factor), norm, mixer_name=name)

    return Decoder(config, ops, max_model_len, [layer(i) for i in range(config.n_layers)], norm())
