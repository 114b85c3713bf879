"""Decoder: embedding, layers, final norm and output matrix; the whole of a model, whatever its family."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.kv.storage import GroupStorage
from engine.models.operators import Operators
from engine.models.parts import DecoderLayer, Embedding, Linear, Norm
from engine.models.rotary import Rotary
from engine.types import StepInputs
from engine.weights.config import ModelConfig
from engine.weights.loader import Slot


class Decoder:
    def __init__(
        self,
        config: ModelConfig,
        ops: Operators,
        max_model_len: int,
        layers: Sequence[DecoderLayer],
        norm: Norm,
        *,
        norm_name: str = "model.norm",
    ) -> None:
        self.config = config
        self._norm_name = norm_name
        self.layers = layers
        self.norm = norm
        self.head = Linear(ops, config.hidden_size, config.vocab_size)
        self.embedding = Embedding(
            ops,
            config.vocab_size,
            config.hidden_size,
            scale=config.embedding_scale,
            head=self.head if config.tie_embeddings else None,
        )
        tables = [Rotary(rope, max_model_len, ops.device) for rope in config.distinct_ropes]
        unturned = torch.empty(max_model_len, 0, device=ops.device)
        self._angles = [
            (unturned, unturned) if rope is None else tables[config.distinct_ropes.index(rope)].angles for rope in config.ropes
        ]

    def parameters(self) -> dict[str, Slot]:
        """Hugging Face name -> slot, for every parameter; a tied output matrix is not one."""
        slots: dict[str, Slot] = {"model.embed_tokens.weight": self.embedding}
        for i, layer in enumerate(self.layers):
            slots.update(layer.parameters(f"model.layers.{i}"))
        slots.update(self.norm.parameters(self._norm_name))
        if not self.config.tie_embeddings:
            slots.update(self.head.parameters("lm_head"))
        return slots

    def forward(self, inputs: Sequence[StepInputs], kv: GroupStorage) -> Tensor:
        """Hidden states after the final norm, [n, h]; the step's keys, values and states are in `kv` afterwards.

        inputs: as each KV group sees the step.
        """
        positions = inputs[0].positions
        x, residual = self.embedding(inputs[0].token_ids), None
        for i, layer in enumerate(self.layers):
            x, residual = layer(x, residual, (positions, *self._angles[i]), inputs[kv.group(i)], kv.layer(i))
        return self.norm.add(x, residual)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, h] -> float32 [rows, vocabulary]"""
        return self.shaped(self.head(hidden).float())

    def shaped(self, logits: Tensor) -> Tensor:
        """Logits by the model's factor, then bent softly under its cap, where it has these; in place."""
        scale, cap = self.config.logit_scale, self.config.logit_soft_cap
        scaled = logits if scale == 1.0 else logits.mul_(scale)
        return scaled.div_(cap).tanh_().mul_(cap) if cap else scaled
