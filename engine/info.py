"""ModelInfo: identity, size and memory of a loaded model."""

from __future__ import annotations

import msgspec

from engine.kv.groups import KVGroup


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a loaded model is and what it was given."""

    name: str
    path: str
    family: str
    quantization: str
    """Quant type of most weight bytes, for example Q4_1, or a float format."""
    dtype: str
    """Number format of the activations."""
    max_model_len: int
    """Window in force, in tokens."""
    n_vocab: int
    """Token ids below this may be sent and can be drawn: those that tokenizer and matrices both have."""
    n_params: int
    weights_bytes: int
    kv_bytes: int
    n_blocks: int
    """Of all KV groups."""
    block_size: int
    kv_groups: tuple[KVGroup, ...] = ()
    """Which layers the blocks are for; in this order they are numbered in statistics."""
    digest: str
    kv_kind: str = ""
    """Names what the KV depends on besides tokens; two servers of one kind can read each other's."""
    needed_bytes: int = 0
    """Memory that it takes at most, as predicted when it was loaded: all of weights, cache, host memory, steps and tokenizer."""
    memory_note: str
    """How window and KV cache were fitted, in words."""
