"""What a loaded model takes of memory, part by part, told before anything of it is there.

tests/engine/runner/test_peak.py compares the sum with what real models take; docs/architecture.md says what is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.runner import cores
from engine.weights.config import KVShape, ModelConfig
from kernels.cpu import launch

PROMPT_ROWS = 64
"""Rows of logits held at once for prompt logprobs: a vocabulary of 262,144 makes 64 MiB of them."""
TEXT_BYTES = 430
"""Of the tokenizer for each token of the vocabulary: its maps in both directions and the merges. 405 to 447 were measured of
vocabularies of 49,152 to 262,144 tokens, byte-level and SentencePiece."""
_TASKS_PER_THREAD, _TILE_ROWS, _SPLIT = 6, 48, 256
"""Of the native attention (attention.cpp, attention.h), which keeps a partial result for each split of a long context."""

_SAMPLE_ROWS = 5
"""Of the native sampler (Workspace in sample_row.h), as long as a row of logits and of each thread."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes."""

    weights: int
    packing: int
    """A matrix that is packed is there twice meanwhile, as yet beside nothing that a step needs."""
    text: int
    """The tokenizer, in host memory."""
    step: int
    """Activations, logits and what is drawn from them, of the largest step; rotary tables and block tables of the window."""
    kv: int
    host: int
    """Host memory for blocks that leave the cache."""

    @property
    def total(self) -> int:
        """At most at any time, on the device and of the host together."""
        return self.weights + self.text + max(self.packing, self.step + self.kv + self.host)


def computes_natively(model: ModelConfig, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether attention and sampling run on the native CPU operators."""
    if device.type != "cpu" or dtype != torch.float32 or launch.missing is not None:
        return False
    return _largest_head(model) <= launch.native.MOST_HEAD_SIZE


def _kv_shapes(model: ModelConfig) -> list[KVShape]:
    return [model.kv_shape(i) for i in range(model.n_layers)]


def _largest_head(model: ModelConfig) -> int:
    return max(max(shape.key_dim, shape.value_dim) for shape in _kv_shapes(model))


def text_bytes(model: ModelConfig) -> int:
    return TEXT_BYTES * model.vocab_size


def step_bytes(config: EngineConfig, model: ModelConfig, dtype: torch.dtype, *, native: bool) -> int:
    """What the largest step holds besides weights and cache, whatever the window."""
    return config.token_budget * _row_bytes(model, dtype) + _sampling_bytes(config, model, native=native)


def position_bytes(
    config: EngineConfig, model: ModelConfig, dtype: torch.dtype, *, block_size: int, n_groups: int, native: bool
) -> int:
    """What a position of the window takes besides its place in the cache."""
    position = 4 * sum(rope.rotary_dim for rope in model.distinct_ropes)
    position += -(-4 * config.max_num_seqs * n_groups // block_size)  # block tables
    if native:
        n_parts = _TASKS_PER_THREAD * (config.threads or cores.physical())
        position += n_parts * _TILE_ROWS * (_largest_head(model) + 2) * 4 // _SPLIT
    else:  # keys and values of the sequence at hand in float32
        position += 4 * max(shape.n_heads * (shape.key_dim + shape.value_dim) for shape in _kv_shapes(model))
    return position if config.enable_chunked_prefill else position + _row_bytes(model, dtype)


def _row_bytes(model: ModelConfig, dtype: torch.dtype) -> int:
    """Of one token's activations, roughly: most are not there at once."""
    mixer = max((model.n_heads + shape.n_heads) * (shape.key_dim + shape.value_dim) for shape in _kv_shapes(model))
    if (recurrent := model.recurrent) is not None:
        repeated = recurrent.n_heads * (2 * recurrent.key_dim + recurrent.head_dim)
        mixer = max(mixer, 3 * recurrent.conv_channels + 2 * recurrent.n_heads * recurrent.head_dim + 2 * repeated)
    mlp = 3 * model.intermediate_size
    if (experts := model.experts) is not None:
        # Results of each expert, and its input in integers: of the MLP's first half, then of its second.
        mlp = max(mlp, 3 * experts.routing.n_used * (experts.width + model.hidden_size) // 2 + 3 * experts.shared_width)
    return (4 * model.hidden_size + mlp + mixer) * max(dtype.itemsize, 4)


def _sampling_bytes(config: EngineConfig, model: ModelConfig, *, native: bool) -> int:
    """Logits of every sequence in float32. A recorded step has them in two places, for steps in which all rows are drawn from
    and for others; rows whose logprobs are asked for are copied before they are edited. In plain torch the weights in float32
    and their running sums in float64 come instead. Prompt logprobs have rows of their own.
    """
    n_seqs, n_prompt = config.max_num_seqs, min(PROMPT_ROWS, config.token_budget)
    n_rows = 3 * n_seqs + n_prompt if native else 4 * n_seqs + n_prompt
    n_work = _SAMPLE_ROWS * (config.threads or cores.physical()) if native else 0
    return 4 * model.vocab_size * (n_rows + n_work)
