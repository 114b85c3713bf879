"""Models of which only transformers has a class: what their attention needs is seen by a run without weights."""

from __future__ import annotations

from engine.weights.config import KVShape, ModelConfig
from engine.weights.fields import Fields


def borrowed(fields: Fields) -> ModelConfig:
    """Raises ModelLoadError, which says why, for a class that cannot be run on a paged cache."""
    from engine.models.borrowed import probed  # transformers takes seconds to import, and few need it

    config, calls, hidden_size, vocab_size, files = probed(fields.values, fields.source)
    shapes = tuple(KVShape(call.k.shape[1], call.k.shape[2], call.v.shape[2]) for call in calls)
    n_layers, first = len(calls), calls[0]
    return ModelConfig(
        family="transformers",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        n_layers=n_layers,
        n_heads=max(call.q.shape[1] for call in calls),
        n_kv_heads=shapes[0].n_heads,
        head_dim=shapes[0].key_dim,
        intermediate_size=getattr(config, "intermediate_size", None) or 4 * hidden_size,
        rms_eps=1e-6,
        max_position=fields.integer("max_position_embeddings", getattr(config, "max_position_embeddings", 2048)),
        tie_embeddings=config.tie_word_embeddings,
        ropes=(None,) * n_layers,
        windows=tuple(call.window for call in calls),
        attention_scale=first.scale,
        activation="silu",
        attn_soft_cap=first.soft_cap,
        kv_shapes=shapes,
        borrowed=fields.values,
        borrowed_files=files,
    )
