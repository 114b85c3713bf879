"""What a model on disk is, read from its headers; no weights are loaded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from app.catalog.disk import LocalModel


def describe(model: LocalModel) -> dict[str, str | int]:
    """Facts by name, for a person and for scripts. ModelLoadError when the file is damaged or of an unsupported kind."""
    import torch

    from engine.kv.storage import token_bytes
    from engine.weights.loader import open_checkpoint

    checkpoint = open_checkpoint(model.path)
    config = checkpoint.config
    formats = Counter[str]()
    for name in checkpoint.names():
        if len(checkpoint.shape(name)) == 2:
            formats[checkpoint.qtype(name)] += checkpoint.stored_bytes(name)
    total = formats.total()
    windows = sum(1 for window in config.windows if window)
    states = config.recurrent.layers if config.recurrent else ()
    keeping = [i for i in range(config.n_layers) if i not in states and config.kv_source(i) == i]
    return {
        "family": config.family,
        "parameters": sum(math.prod(checkpoint.shape(name)) for name in checkpoint.names()),
        "number_formats": ", ".join(f"{qtype} {n_bytes / total:.0%}" for qtype, n_bytes in formats.most_common()),
        "layers": config.n_layers,
        "layers_with_sliding_window": windows,
        "hidden_size": config.hidden_size,
        "heads": f"{config.n_heads} of {config.head_dim}, {config.n_kv_heads} for keys and values",
        "vocabulary": config.vocab_size,
        "window_tokens": config.max_position,
        "kv_bytes_per_token_float32": sum(token_bytes(config.kv_shape(i), torch.float32) for i in keeping),
        "chat_template": "yes" if _has_template(model, checkpoint.metadata) else "no",
        "digest": checkpoint.digest,
    }


def _has_template(model: LocalModel, metadata: Mapping[str, Any]) -> bool:
    if model.kind == "gguf":
        return "tokenizer.chat_template" in metadata
    texts = (model.path / name for name in ("chat_template.jinja", "tokenizer_config.json"))
    return any(path.is_file() and (path.suffix == ".jinja" or "chat_template" in path.read_text("utf-8")) for path in texts)
