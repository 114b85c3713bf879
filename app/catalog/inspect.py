"""What a model on disk is, read from its headers, and what of it fits on this machine; no weights are loaded."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch

from app.catalog.advice import capped
from app.catalog.disk import LocalModel
from engine.config import EngineConfig
from engine.errors import PagewellError, TemplateError
from engine.kv.groups import KVGroup
from engine.quant import on_load
from engine.runner.memory import kv_groups
from engine.runner.prediction import predict, weigh
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from engine.weights.checkpoint import Checkpoint
from engine.weights.loader import open_checkpoint

KV_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "fp8_e4m3": torch.float8_e4m3fn,
}


def describe(
    model: LocalModel, config: EngineConfig | None = None, *, free: int | None = None, caps_window: bool = False
) -> dict[str, Any]:
    """Facts by name, for a person and for scripts: what it is, and what it would come to with these settings.

    free: bytes to be had; None asks the system. caps_window: max_model_len is the most, and a model made for less has its own.
    ModelLoadError when the file is damaged or of an unsupported kind.
    """
    config = config or EngineConfig()
    checkpoint = open_checkpoint(model.path)
    facts = checkpoint.config
    formats = Counter[str]()
    for name in checkpoint.names():
        if len(checkpoint.shape(name)) == 2:
            formats[checkpoint.qtype(name)] += checkpoint.stored_bytes(name)
    n_params = sum(math.prod(checkpoint.shape(name)) for name in checkpoint.names())
    per_token = {name: _bytes_per_token(kv_groups(facts, 1, dtype, facts.max_position)) for name, dtype in KV_DTYPES.items()}
    return {
        "family": facts.family,
        "n_parameters": n_params,
        "number_formats": {qtype: f"{n_bytes / formats.total():.0%}" for qtype, n_bytes in formats.most_common()},
        "bits_per_weight": round(checkpoint.n_bytes * 8 / n_params, 2),
        "n_layers": facts.n_layers,
        "hidden_size": facts.hidden_size,
        "heads": f"{facts.n_heads} of {facts.head_dim}, {facts.n_kv_heads} for keys and values",
        "n_vocabulary": facts.vocab_size,
        "window_tokens": facts.max_position,
        "groups": [_group(group) for group in kv_groups(facts, 1, torch.float16, facts.max_position)],
        "kv_bytes_per_token": per_token,
        **_template(checkpoint),
        "digest": checkpoint.digest,
        **_here(checkpoint, capped(config, facts.max_position) if caps_window else config, free),
    }


def _bytes_per_token(groups: list[KVGroup]) -> int:
    """Of the layers that keep something for each token; states are of one size, however long the text."""
    return sum(group.block_bytes for group in groups if not group.recurrent)


def _group(group: KVGroup) -> str:
    size = f", {group.block_bytes:,} bytes for each sequence" if group.recurrent else ""
    return f"{len(group.layers)} layers, {group.name}{size}"


def _template(checkpoint: Checkpoint) -> dict[str, Any]:
    """Whether it can hold a conversation, and fill in the middle."""
    try:
        if checkpoint.kind == "gguf":
            tokenizer = Tokenizer.from_gguf(checkpoint.metadata)
            template = ChatTemplate.from_gguf(checkpoint.metadata, tokenizer)
        else:
            tokenizer = Tokenizer.from_folder(checkpoint.path)
            template = ChatTemplate.from_folder(checkpoint.path, tokenizer)
    except TemplateError as error:
        return {"chat_template": f"cannot be read: {error.message}"}
    except PagewellError as error:
        return {"tokenizer": f"cannot be used: {error.message}"}
    return {
        "chat_template": "no" if template.is_default else "yes",
        "tools_in_template": template.abilities.tools,
        "fills_in_the_middle": tokenizer.fim is not None,
    }


def _here(checkpoint: Checkpoint, config: EngineConfig, free: int | None) -> dict[str, Any]:
    """What it comes to on this machine."""
    try:
        taken = predict(config, weigh(on_load.opened(checkpoint, config), config), free=free)
    except PagewellError as error:
        return {"fits_here": False, "why_not": error.message}
    budget = taken.budget
    return {
        "fits_here": True,
        "window_here": budget.max_model_len,
        "weights_bytes": taken.weights_bytes,
        "kv_cache_bytes": budget.n_bytes,
        "kv_cache_dtype": str(taken.kv_dtype).removeprefix("torch."),
        "limited_by": budget.why,
    }
