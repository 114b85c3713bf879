"""Decoders of families that have no file of ours: transformers' own class computes them, on our cache and our products.

The class's attention is paged_attention over our cache, its matrices and its embedding are Weights of any type; norms, rotary
angles, activations and whatever else it has are its own, in torch. It knows of one row of tokens with positions, and of no
sequence, cache or generation. Torch cuts an activation at places that depend on how many tokens there are, and computes the
numbers at the ends of its pieces in another way than the rest; it is left one thread, so that no row that is made of whole
vectors has such an end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from engine.kv.storage import GroupStorage
from engine.models.borrowed import Call, attending, ends_are_ours, opened, stored_names, without_weights
from engine.models.operators import Operators
from engine.models.parts import Embedding, Linear
from engine.types import StepInputs
from engine.weights.config import ModelConfig
from engine.weights.loader import Slot
from kernels.ops import DENSE, Weight
from kernels.reference import dequant

log = logging.getLogger(__name__)

_QTYPES = {dtype: qtype for qtype, dtype in DENSE.items()}


class _Part(nn.Module):
    """Stands where a module was whose matrix is ours; `weight` has its shape and type only."""

    def __init__(self, part: Linear | Embedding, weight: Tensor) -> None:
        super().__init__()
        self.part = part
        self.register_buffer("weight", weight.detach(), persistent=False)


class _Product(_Part):
    def forward(self, x: Tensor) -> Tensor:
        return self.part(x.flatten(0, -2)).unflatten(0, x.shape[:-1])


class _Rows(_Part):
    def forward(self, token_ids: Tensor) -> Tensor:
        return self.part(token_ids.flatten()).unflatten(0, token_ids.shape)


class _Turned:
    """A Slot for a matrix whose transposed is in the file."""

    def __init__(self, part: Linear) -> None:
        self.shape = part.shape[::-1]
        self._part = part

    def fill(self, value: Weight) -> bool:
        dense = value.data if value.qtype in DENSE else dequant.dense(value)
        turned = dense.T.contiguous()
        self._part.fill(Weight(_QTYPES[turned.dtype], (turned.shape[0], turned.shape[1]), turned))
        return False


class _Value:
    """A Slot for a parameter or buffer that stays transformers': dense."""

    def __init__(self, places: Sequence[tuple[nn.Module, str]], value: Tensor, dtype: torch.dtype) -> None:
        self.shape = tuple(value.shape)
        self._places = places
        self._dtype = dtype if value.is_floating_point() else value.dtype

    def fill(self, value: Weight | Tensor) -> bool:
        dense = (dequant.dense(value) if isinstance(value, Weight) else value).to(self._dtype)
        for module, name in self._places:
            if name in module._parameters:
                module._parameters[name] = nn.Parameter(dense, requires_grad=False)
            else:
                module._buffers[name] = dense
        return True


class _AndHead:
    """A Slot for an embedding that stays transformers', whose matrix is that of the output too."""

    def __init__(self, embedding: _Value, head: Linear) -> None:
        self.shape = embedding.shape
        self._embedding = embedding
        self._head = head

    def fill(self, value: Weight) -> bool:
        keeps = self._head.fill(value)
        return self._embedding.fill(value) or keeps


class _Stub(nn.Module):
    """Stands where the decoder was when only logits are asked for."""

    def forward(self, *args: Any, inputs_embeds: Tensor, **kwargs: Any) -> SimpleNamespace:
        return _Output(last_hidden_state=inputs_embeds)


class _Output(SimpleNamespace):
    """Whatever else a decoder returns is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)

    def __getitem__(self, i: int) -> Tensor:
        return (self.last_hidden_state,)[i]


class BorrowedDecoder:
    """As engine.models.decoder.Decoder."""

    uses_torch = True

    def __init__(self, config: ModelConfig, ops: Operators, max_model_len: int) -> None:
        self.config = config
        self._ops = ops
        cls, theirs = opened(config.borrowed, "config.json")
        with without_weights():
            self._causal = cls(theirs).eval()
        stored = stored_names(self._causal)
        self._slots = {stored(name): slot for name, slot in self._own_parts().items()}
        self._decoder = self._causal.get_decoder()
        name = next(name for name, module in self._causal.named_modules() if module is self._decoder)
        parent, _, own = name.rpartition(".")
        setattr(self._causal.get_submodule(parent), own, _Stub())
        for module in (self._decoder, self._causal):
            module._apply(lambda tensor: tensor if tensor.is_meta else tensor.to(ops.device))
        self._unturned = (torch.empty(max_model_len, 0, device=ops.device),) * 2
        self._operators = [self._of_layer(i) for i in range(config.n_layers)]

    def _of_layer(self, i: int) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
        shape = self.config.kv_shape(i)
        sizes = {"head_size": shape.key_dim, "value_size": shape.value_dim}
        special = {"window": self.config.windows[i] > 0, "soft_cap": self.config.attn_soft_cap > 0}
        return self._ops.get_cached("rope_and_write_kv", **sizes), self._ops.get_cached("paged_attention", **sizes, **special)

    def _own_parts(self) -> dict[str, Slot]:
        """Put our parts where they can stand; the slots of these and of all others, by name."""
        causal, ops, slots = self._causal, self._ops, {}
        head, embedding = causal.get_output_embeddings(), causal.get_input_embeddings()
        tied = self.config.tie_embeddings
        is_ours = ends_are_ours(head, is_tied=tied)
        shared = Linear(ops, head.in_features, head.out_features, bias=head.bias is not None) if tied and is_ours else None
        of_embedding = next(name for name, module in causal.named_modules() if module is embedding)
        for name, module in list(causal.named_modules()):
            is_head = module is head
            if not is_ours and (is_head or module is embedding):
                continue
            if type(module) is nn.Linear or type(module).__name__ == "Conv1D":
                is_turned = type(module) is not nn.Linear
                n_in, n_out = module.weight.shape if is_turned else module.weight.shape[::-1]
                part = shared if is_head and shared else Linear(ops, n_in, n_out, bias=module.bias is not None)
                ours: _Part = _Product(part, module.weight)
                slots |= {own: slot for own, slot in part.parameters(name) if slot is not shared}
                if is_turned:
                    slots[f"{name}.weight"] = _Turned(part)
            elif type(module) is nn.Embedding:
                part = Embedding(ops, *module.weight.shape, head=shared if module is embedding else None)
                ours = _Rows(part, module.weight)
                slots[f"{name}.weight"] = part
            else:
                continue
            parent, _, own = name.rpartition(".")
            setattr(causal.get_submodule(parent), own, ours)
        dense = self._dense_parts(slots)
        if shared and type(embedding) is not nn.Embedding:
            dense[f"{of_embedding}.weight"] = _AndHead(dense[f"{of_embedding}.weight"], shared)
        return slots | dense

    def _dense_parts(self, ours: dict[str, Slot]) -> dict[str, Slot]:
        """What stays transformers'."""
        places: dict[int, list[tuple[nn.Module, str]]] = {}
        values: dict[str, Tensor] = {}
        for prefix, module in self._causal.named_modules():
            lasting = {name: value for name, value in module._buffers.items() if name not in module._non_persistent_buffers_set}
            for name, value in {**module._parameters, **lasting}.items():
                if value is None:
                    continue
                if id(value) not in places:
                    values[f"{prefix}.{name}".lstrip(".")] = value
                places.setdefault(id(value), []).append((module, name))
        n_dense = sum(value.numel() for value in values.values() if value.dim() > 1)
        _explain(self.config.borrowed["model_type"], n_dense)
        return {name: _Value(places[id(value)], value, self._ops.dtype) for name, value in values.items() if name not in ours}

    def parameters(self) -> dict[str, Slot]:
        return self._slots

    def forward(self, inputs: Sequence[StepInputs], kv: GroupStorage) -> Tensor:
        """Hidden states after the final norm, [n, h]; the step's keys and values are in `kv` afterwards."""
        positions = inputs[0].positions

        def attend(call: Call) -> Tensor:
            (k_cache, v_cache, scales), own = kv.layer(call.layer), inputs[kv.group(call.layer)]
            write, paged_attention = self._operators[call.layer]
            q, k, v = call.q.contiguous(), call.k.contiguous(), call.v.contiguous()
            q = write(q, k, v, positions, *self._unturned, k_cache, v_cache, own.slots, scales)
            tables = own.query_starts, own.context_lens, own.block_tables
            how = call.scale, self.config.windows[call.layer], call.soft_cap
            return paged_attention(q, k_cache, v_cache, *tables, *how, scales, call.sinks)

        with attending(attend):
            row = {"input_ids": inputs[0].token_ids[None], "position_ids": positions[None]}
            return self._decoder(**row, use_cache=False).last_hidden_state[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, h] -> float32 [rows, vocabulary]"""
        return self._causal(inputs_embeds=hidden[None], use_cache=False).logits[0].float()


@cache
def _explain(model_type: str, n_dense: int) -> None:
    """Once in a process for each model."""
    dense = f" {n_dense:,} of its weights are kept dense, as no product of ours uses them." if n_dense else ""
    log.warning(
        "Pagewell has no file for models of type %s: transformers' class computes them, operator by operator in torch around our "
        "attention and products, which takes longer than families with a file of their own do.%s",
        model_type,
        dense,
    )
