"""Decoder: embedding, layers, final norm and output matrix; the whole of a model, whatever its family."""

from __future__ import annotations

from collections.abc import Sequence

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
        self._rotary = Rotary(config.rope, max_model_len, ops.device)
        local = config.local_rope
        self._local_rotary = self._rotary if local is None else Rotary(local, max_model_len, ops.device)

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
        angles = (positions, self._rotary.cos, self._rotary.sin)
        local_angles = (positions, self._local_rotary.cos, self._local_rotary.sin)
        x, residual = self.embedding(inputs[0].token_ids), None
        for i, layer in enumerate(self.layers):
            turned = local_angles if self.config.windows[i] else angles
            x, residual = layer(x, residual, turned, inputs[kv.group(i)], kv.layer(i))
        return self.norm.add(x, residual)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, h] -> float32 [rows, vocabulary]"""
        return self.cap(self.head(hidden).float())

    def cap(self, logits: Tensor) -> Tensor:
        """Bend logits softly under the model's cap, if it has one; in place."""
        cap = self.config.logit_soft_cap
        return logits.div_(cap).tanh_().mul_(cap) if cap else logits
