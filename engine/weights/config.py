"""ModelConfig: what a model is, read from a Hugging Face config.json or from GGUF metadata, in one vocabulary."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernels.ops import Routing


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
      longrope short_factor, long_factor: rotary_dim / 2 divisors of inv_freq for windows up to
               original_max_position_embeddings and for larger ones; attention_factor
      factors  factors: rotary_dim / 2 divisors of inv_freq, as a GGUF's rope_freqs tensor has them
    """

    theta: float
    rotary_dim: int
    scaling: str = "none"
    params: Mapping[str, Any] = field(default_factory=dict)


def mscale(factor: float, weight: float = 1.0) -> float:
    """By how much yarn makes scores sharper for a window that is `factor` times as long."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


@dataclass(frozen=True, slots=True)
class KVShape:
    """What a layer of attention keeps of each token: keys and values of some heads."""

    n_heads: int
    key_dim: int
    value_dim: int
    latent: bool = False
    """Values are the last value_dim dims of the keys, so that only keys are kept."""


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Attention whose keys and values of all heads are made of one latent for each token (arXiv:2405.04434)."""

    rank: int
    """Dims of the latent."""
    q_rank: int
    """Dims of what queries are made of; 0: of the hidden state itself."""
    key_dim: int
    """Of a head's keys, the dims that come from the latent."""
    rope_dim: int
    """The dims that turn, one key of which serves all heads."""
    value_dim: int
    interleaved: bool = True
    """Dims 2 i and 2 i + 1 of those that turn are a pair, in the checkpoint."""
    in_two: bool = False
    """The checkpoint has the matrix that makes keys and values in two, each head's part of that of keys turned."""


@dataclass(frozen=True, slots=True)
class RecurrentConfig:
    """Layers that carry a state from token to token instead of looking back at keys and values.

    kind: "delta", the gated delta rule (arXiv:2412.06464), or "mamba2", a scalar state space (arXiv:2405.21060). A causal
    convolution over conv_width tokens comes before it, which keeps the last conv_width - 1 inputs of each channel. "conv": that
    is all, of n_heads channels of head_dim 1; key_dim is 0.
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
    tiled: bool = False
    """Value head h is served by key head h % n_key_heads and not by h * n_key_heads // n_heads."""

    @property
    def conv_channels(self) -> int:
        return 2 * self.n_key_heads * self.key_dim + self.n_heads * self.head_dim

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of one layer: the convolution's last inputs, and the state; float32."""
        taps = self.conv_channels, self.conv_width - 1
        return (taps, (self.n_heads, self.key_dim, self.head_dim)) if self.key_dim else (taps,)


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Layers whose MLP is a mixture of experts, of which a router chooses some for each token."""

    n_experts: int
    width: int
    """Of an expert's MLP."""
    routing: Routing
    layers: tuple[int, ...]
    choice_bias: bool = False
    """The router's choice, but not the gains, is by scores with a bias."""
    bias: bool = False
    """The matrices of experts and router have biases."""
    shared_width: int = 0
    """Of the MLP that all tokens go through too; 0: there is none."""
    shared_gate: bool = False
    """What it adds has a gate."""
    gains_first: bool = False
    """An expert is given the token's state times its gain, and what it returns has none."""
    activation: str = ""
    """As of kernels.ops.ExpertsGated; empty: the model's."""
    alpha: float = 1.0
    limit: float = 0.0
    """Of the activation "clipped"."""
    stored_turned: bool = False
    """Safetensors have tensors of all experts as [E, in, out]."""
    stored_paired: bool = False
    """Safetensors have rows of gate and up in turn."""


@dataclass(frozen=True, slots=True)
class BorrowedFiles:
    """What transformers' class says of the files that it is filled from. Names are those of files."""

    names: frozenset[str]
    """Of all that the class has."""
    embedding: str
    head: str
    prefix: str
    """Of the decoder's part, which files may leave out."""
    unused: tuple[str, ...]
    """Patterns of names that files may have for nothing."""
    matrices: Mapping[str, str]
    """Name -> what becomes of it: a "product" or an "end" (embedding, output matrix) of ours takes any type, what is "turned" is
    made dense. All others are transformers' own, in the type of activations."""

    def placed(self, name: str) -> str | None:
        """What the class calls a stored tensor; None for one that it has no use for."""
        first = name.partition(".")[0]
        if not self._has(first) and self._has(f"{self.prefix}.{first}"):
            name = f"{self.prefix}.{name}"
        unused = name not in self.names and any(re.search(pattern, name) for pattern in self.unused)
        return None if unused else name

    def _has(self, part: str) -> bool:
        return any(name.startswith(f"{part}.") for name in self.names)


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
    """Of RMS norms, or layer norms where the family has those."""
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
    """"silu", "gelu_tanh" or "relu_squared"."""
    attention_bias: bool = False
    """q, k and v have biases."""
    attention_output_bias: bool = False
    """o has a bias (never in qwen2, whose q, k and v have)."""
    mlp_bias: bool = False
    head_norms: bool = False
    """Heads of q and k are normed, in families where that is configured."""
    chunked_windows: bool = False
    """A window cuts the text into chunks of its size, and a query sees back to the beginning of its own."""
    query_growth: tuple[float, int] | None = None
    """(beta, period): a query at position p is multiplied by 1 + beta log(1 + floor((p + query_shift) / period))."""
    query_shift: int = 0
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
    borrowed: Mapping[str, Any] | None = None
    """config.json of a model that transformers' own class computes; of the fields above those of norms, rope and activation say
    nothing then."""
    borrowed_files: BorrowedFiles | None = None
    """Of such a model."""
    latent: LatentConfig | None = None
    """None where keys and values are kept as they are."""
    kv_shapes: tuple[KVShape, ...] = ()
    """Per layer; none: n_kv_heads heads of head_dim in all of them."""
    kv_sources: tuple[int, ...] = ()
    """Per layer: the layer whose keys and values it reads, itself or an earlier one; none: each its own."""
    values_are_keys: tuple[bool, ...] = ()
    """Per layer: what makes keys makes values too; none: nowhere."""
    wide_where_shared: bool = False
    """MLPs of layers that read the keys of others are twice as wide."""
    layer_input_size: int = 0
    """Of a token's embedding for each layer; 0: there are none."""
    layer_input_vocab: int = 0
    experts: ExpertsConfig | None = None
    """None where no layer has experts."""
    shared_width: int = 0
    """Of an MLP beside experts in all layers, also in models of which no layer has experts (granitemoehybrid)."""
    attention_sinks: bool = False
    """Each head has a score that takes part in the softmax without a key."""

    def kv_shape(self, layer: int) -> KVShape:
        return self.kv_shapes[layer] if self.kv_shapes else KVShape(self.n_kv_heads, self.head_dim, self.head_dim)

    def kv_source(self, layer: int) -> int:
        return self.kv_sources[layer] if self.kv_sources else layer

    @property
    def distinct_ropes(self) -> tuple[RopeConfig, ...]:
        """In the order of the layers that have them first."""
        ropes: list[RopeConfig] = []
        for rope in self.ropes:
            if rope is not None and rope not in ropes:
                ropes.append(rope)
        return tuple(ropes)
