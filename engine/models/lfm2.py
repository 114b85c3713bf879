"""LFM2, with MLPs or experts: short convolutions between two gates, and a few layers of attention with normed heads."""

from __future__ import annotations

from torch import Tensor

from engine.models.decoder import Decoder
from engine.models.experts import feed_forward
from engine.models.operators import Operators
from engine.models.parts import Angles, Attention, Block, Linear, Norm, Parameters
from engine.models.recurrent import Convolution, where
from engine.types import StepInputs
from engine.weights.config import ModelConfig


class ShortConvolution:
    """out(c * convolution(b * x)), where one matrix makes b, c and x. Its state is the convolution's last inputs."""

    def __init__(self, config: ModelConfig, ops: Operators) -> None:
        size, recurrent = config.hidden_size, config.recurrent
        self.inputs = Linear(ops, size, 3 * size, bias=recurrent.bias)
        self.out = Linear(ops, size, size, bias=recurrent.bias)
        self.conv = Convolution(ops, size, recurrent.conv_width, bias=recurrent.conv_bias, activate=False)
        self._mul = ops.get("mul")

    def __call__(self, x: Tensor, angles: Angles, inputs: StepInputs, states: tuple[Tensor]) -> Tensor:
        """[n, h] -> [n, h]; the state goes on."""
        b, c, x = self.inputs(x).chunk(3, -1)
        return self.out(self._mul(c, self.conv(self._mul(b, x), states[0], where(inputs))))

    def parameters(self, name: str) -> Parameters:
        yield from self.inputs.parameters(f"{name}.in_proj")
        yield from self.out.parameters(f"{name}.out_proj")
        yield from self.conv.parameters(f"{name}.conv")


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Decoder:
    def norm() -> Norm:
        return Norm(ops, config.hidden_size, config.rms_eps)

    def head_norm() -> Norm:
        return Norm(ops, config.head_dim, config.rms_eps)

    def layer(i: int) -> Block:
        if config.recurrent and i in config.recurrent.layers:
            return Block(ShortConvolution(config, ops), feed_forward(config, ops, i), norm, mixer_name="conv")
        return Block(Attention(config, ops, i, head_norm=head_norm), feed_forward(config, ops, i), norm)

    return Decoder(config, ops, max_model_len, [layer(i) for i in range(config.n_layers)], norm())
