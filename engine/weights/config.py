"""ModelConfig: what a model is, read from a Hugging Face config.json or from GGUF metadata, in one vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """How positions turn into rotation angles: inv_freq[i] = theta ** (-2 i / rotary_dim), i < rotary_dim / 2, then scaled.

    `params` by `scaling`, with the names of transformers' modeling_rope_utils, whose formulas hold:
      none
      linear   factor
      llama3   factor, low_freq_factor, high_freq_factor, original_max_position_embeddings
      yarn     factor, original_max_position_embeddings, beta_fast, beta_slow, truncate, and (None: from the factor)
               attention_factor, mscale, mscale_all_dim
      dynamic  factor, original_max_position_embeddings
      factors  factors: rotary_dim / 2 divisors of inv_freq, as a GGUF's rope_freqs tensor has them
    """

    theta: float
    rotary_dim: int
    scaling: str = "none"
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecurrentConfig:
    """Layers that carry a state from token to token instead of looking back at keys and values.

    kind: "delta", the gated delta rule (arXiv:2412.06464), or "mamba2", a scalar state space (arXiv:2405.21060). A causal
    convolution over conv_width tokens comes before it, which keeps the last conv_width - 1 inputs of each channel.
    """

    kind: str
    layers: tuple[int, ...]
    n_heads: int
    """Value heads of the delta rule."""
    head_dim: int
    n_key_heads: int
    """Key and query heads of the delta rule, groups of B and C of mamba2; each serves n_heads / n_key_heads heads."""
    key_dim: int
    conv_width: int
    bias: bool = False
    """The matrices around it have biases."""
    conv_bias: bool = False

    @property
    def conv_channels(self) -> int:
        return 2 * self.n_key_heads * self.key_dim + self.n_heads * self.head_dim

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of one layer: the convolution's last inputs, and the state; float32."""
        return (self.conv_channels, self.conv_width - 1), (self.n_heads, self.key_dim, self.head_dim)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder-only model. Sizes in values, not bytes."""

    family: str
    vocab_size: int
    hidden_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_eps: float
    max_position: int
    """Window in tokens that the model was made for, rope scaling included."""
    tie_embeddings: bool
    """The output matrix is the embedding matrix; the checkpoint has no lm_head.weight."""
    ropes: tuple[RopeConfig | None, ...]
    """Per layer; None: its heads are not turned."""
    windows: tuple[int, ...]
    """Per layer: how many positions back a query sees, itself included; 0 for all."""
    attention_scale: float
    """Factor of q times k."""
    activation: str
    """"silu" or "gelu_tanh"."""
    attention_bias: bool = False
    """q, k and v have biases."""
    attention_output_bias: bool = False
    """o has a bias (never in qwen2, whose q, k and v have)."""
    mlp_bias: bool = False
    attn_soft_cap: float = 0.0
    """0 for none."""
    logit_soft_cap: float = 0.0
    """0 for none."""
    logit_scale: float = 1.0
    """Factor of the logits."""
    embedding_scale: float = 1.0
    """Factor of the embedding's rows."""
    residual_scale: float = 1.0
    """Factor of what a layer's attention, and its MLP, add to the residual stream."""
    recurrent: RecurrentConfig | None = None
    """None where all layers have attention."""

    @property
    def distinct_ropes(self) -> tuple[RopeConfig, ...]:
        """In the order of the layers that have them first."""
        ropes: list[RopeConfig] = []
        for rope in self.ropes:
            if rope is not None and rope not in ropes:
                ropes.append(rope)
        return tuple(ropes)
