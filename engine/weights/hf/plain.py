"""What the configurations of most families have in common; each family's reader changes what it has otherwise."""

from __future__ import annotations

from engine.weights.config import ModelConfig
from engine.weights.fields import Fields
from engine.weights.hf.rope import read_rope, rope_section, stretched

ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}


def plain(
    fields: Fields,
    family: str,
    *,
    n_kv_heads: int | None = None,
    head_dim: int | None = None,
    rms_eps: float = 1e-6,
    tie: bool = False,
    activation: tuple[str, str] = ("hidden_act", "silu"),
    theta: float = 10_000.0,
    turned: float = 1.0,
) -> ModelConfig:
    """A decoder whose layers all see all tokens, turned by one rope, without biases.

    The rest are defaults: n_kv_heads (None: as many as heads), head_dim (None: an equal part of the hidden size), the field of
    the activation and its value, theta and the share of a head that turns. Raises ModelLoadError.
    """
    hidden_size, n_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    n_layers = fields.integer("num_hidden_layers", high=4096)
    n_kv_heads = fields.integer("num_key_value_heads", n_kv_heads or n_heads)
    if n_heads % n_kv_heads:
        raise fields.bad("num_key_value_heads", f"is {n_kv_heads}, which does not divide {n_heads} attention heads")
    head_dim = fields.integer("head_dim", head_dim or hidden_size // n_heads)
    name = fields.text(*activation)
    if name not in ACTIVATIONS:
        raise fields.bad(activation[0], f"is {name}", f"Supported: {', '.join(ACTIVATIONS)}.")
    max_position = fields.integer("max_position_embeddings")
    rope = read_rope(fields, rope_section(fields), theta, head_dim, max_position, turned)
    return ModelConfig(
        family=family,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        intermediate_size=fields.integer("intermediate_size"),
        rms_eps=fields.number("rms_norm_eps", rms_eps),
        max_position=stretched(rope, max_position),
        tie_embeddings=fields.flag("tie_word_embeddings", tie),
        ropes=(rope,) * n_layers,
        windows=(0,) * n_layers,
        attention_scale=head_dim**-0.5,
        activation=ACTIVATIONS[name],
    )


def biases(fields: Fields) -> dict[str, bool]:
    """Of q, k, v and o together, where the configuration has one flag for all."""
    biased = fields.flag("attention_bias", False)
    return {"attention_bias": biased, "attention_output_bias": biased}
