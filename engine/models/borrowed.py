"""Transformers' own classes as decoders: which of them can be run here, and how their attention is handed to a function of ours.

Imports transformers only when such a model is opened.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from engine.errors import ModelLoadError
from engine.weights.config import BorrowedFiles

NAME = "pagewell"
"""Of our function, among transformers' implementations of attention."""

_FOREIGN = re.compile(r"_?(attn|experts)_implementation(_internal)?|dtype|quantization_config")
"""Of a configuration and its sections: how transformers is to compute, which may name code elsewhere, and how weights are stored.
Classes that it names are never looked up: the model's type says which one of transformers' own it is."""
_SEEN = {"full_attention": False, "sliding_attention": True}
"""Layer types, and whether those have the configuration's window."""
_NEVER_USED = (r"(^|\.)position_ids$",)
"""Patterns of names that any file may have, besides those of the class."""
_MOVING = ("dynamic", "longrope")
"""Rope types whose angles depend on what else is computed with a token."""
_DOWNLOAD = "The configuration is damaged; download the model again."
_HINT = "Take a GGUF or safetensors model of a family that Pagewell has a file for."


class Unsuitable(Exception):
    """What a class does cannot be done here."""


class Call(NamedTuple):
    """What a layer's attention is asked."""

    layer: int
    q: Tensor
    """[n, H, D], turned already, as k is."""
    k: Tensor
    """[n, Hkv, D]"""
    v: Tensor
    """[n, Hkv, Dv]"""
    scale: float
    window: int
    """0: none that the call names."""
    soft_cap: float
    sinks: Tensor | None


_attend: ContextVar[Callable[[Call], Tensor]] = ContextVar("attend")
_patching = threading.Lock()


@contextmanager
def attending(fn: Callable[[Call], Tensor]) -> Iterator[None]:
    """While entered, fn computes what layers of this thread ask: it returns [n, H, Dv]."""
    token = _attend.set(fn)
    try:
        yield
    finally:
        _attend.reset(token)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """As transformers calls it: query [1, H, n, D], key and value [1, Hkv, n, ...] -> [1, n, H, Dv]."""
    if attention_mask is not None or others.get("position_bias") is not None:
        raise Unsuitable("its attention adds something of its own to scores")
    if others.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise Unsuitable("its attention looks ahead")
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    scale = q.shape[-1] ** -0.5 if scaling is None else float(scaling)
    return _attend.get()(Call(module.layer_idx, q, k, v, scale, sliding_window or 0, softcap or 0.0, s_aux))[None], None


def opened(values: Mapping[str, Any], source: str) -> tuple[type[nn.Module], Any]:
    """The class and the configuration of a model, by config.json. Raises ModelLoadError, which says why it cannot be run."""
    from transformers import AttentionInterface
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    model_type = values["model_type"]

    def bad(why: str) -> ModelLoadError:
        return ModelLoadError(f"{source}: models of type {model_type} are not supported: {why}.", _HINT)

    if model_type not in CONFIG_MAPPING:
        raise bad("neither Pagewell nor transformers knows them")
    try:
        config = CONFIG_MAPPING[model_type].from_dict(_ours(values))
    except Exception as error:  # of many kinds, for classes check their fields in many ways
        raise bad(f"transformers does not take the configuration ({error})") from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or getattr(config, "is_encoder_decoder", False):
        raise bad("transformers has no decoder for them that generates text")
    cls = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if getattr(cls, "_is_stateful", False) or not set(getattr(config, "layer_types", None) or ()) <= _SEEN.keys():
        raise bad("some layers keep a state, or see the text in another way than all of it or a window")
    if not hasattr(sys.modules[cls.__module__], "ALL_ATTENTION_FUNCTIONS"):
        raise bad("transformers' class keeps its attention to itself")
    ropes = getattr(config, "rope_parameters", None) or {}
    for rope in (ropes, *(rope for rope in ropes.values() if isinstance(rope, Mapping))):
        if rope.get("rope_type") in _MOVING:
            raise bad(f"angles of the rope type {rope['rope_type']} depend on the length of the longest text of a batch")
    AttentionInterface.register(NAME, _attention)
    config._attn_implementation = NAME
    config._experts_implementation = "eager"
    return cls, config


def _ours(value: Any) -> Any:
    """A configuration without what is _FOREIGN, at any depth."""
    if isinstance(value, Mapping):
        return {name: _ours(item) for name, item in value.items() if not _FOREIGN.fullmatch(name)}
    return [_ours(item) for item in value] if isinstance(value, list) else value


class Probed(NamedTuple):
    config: Any
    """transformers' own."""
    calls: list[Call]
    """Of each layer in order, of tensors without data."""
    hidden_size: int
    vocab_size: int
    files: BorrowedFiles


def probed(values: Mapping[str, Any], source: str) -> Probed:
    """Two tokens go through a model without weights. Raises ModelLoadError, as opened does."""
    cls, config = opened(values, source)
    calls: dict[int, list[Call]] = {}

    def note(call: Call) -> Tensor:
        calls.setdefault(call.layer, []).append(call)
        return call.q.new_empty(*call.q.shape[:2], call.v.shape[-1])

    try:
        with torch.device("meta"), torch.no_grad(), attending(note):
            model = cls(config).eval()
            ids = torch.zeros(1, 2, dtype=torch.int64)
            where = torch.arange(2)[None]
            hidden = model.get_decoder()(input_ids=ids, position_ids=where, use_cache=False).last_hidden_state
            vocab_size = model.get_output_embeddings().weight.shape[0]
            files = _files(model, is_tied=config.tie_word_embeddings)
    except Exception as error:  # whatever a class of others may raise
        why = f"transformers' class cannot be run on a paged cache ({type(error).__name__}: {error})"
        raise ModelLoadError(f"{source}: models of type {values['model_type']} are not supported: {why}.", _HINT) from error
    n_layers = config.num_hidden_layers
    if sorted(calls) != list(range(n_layers)) or any(len(of_one) > 1 for of_one in calls.values()):
        why = "not every layer has attention, or one has it more than once"
        raise ModelLoadError(f"{source}: models of type {values['model_type']} are not supported: {why}.", _HINT)
    types = getattr(config, "layer_types", None)

    if types and "sliding_attention" in types and not _is_size(getattr(config, "sliding_window", None)):
        raise ModelLoadError(f"{source}: some layers have a window, and sliding_window is not its size.", _DOWNLOAD)

    def with_window(call: Call) -> Call:
        return call._replace(window=config.sliding_window) if types and _SEEN[types[call.layer]] else call

    return Probed(config, [with_window(calls[i][0]) for i in range(n_layers)], hidden.shape[-1], vocab_size, files)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _files(model: nn.Module, *, is_tied: bool) -> BorrowedFiles:
    stored = stored_names(model)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    modules = {id(module): name for name, module in model.named_modules()}
    return BorrowedFiles(
        names=frozenset(map(stored, model.state_dict())),
        embedding=stored(f"{modules[id(embedding)]}.weight"),
        head=stored(f"{modules[id(head)]}.weight"),
        prefix=model.base_model_prefix,
        unused=(*sorted(model._keys_to_ignore_on_load_unexpected or ()), *_NEVER_USED),
        matrices=_matrices(model, stored, is_tied=is_tied),
    )


def _matrices(model: nn.Module, stored: Callable[[str], str], *, is_tied: bool) -> dict[str, str]:
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    is_ours = ends_are_ours(head, is_tied=is_tied)
    kinds = {}
    for name, module in model.named_modules():
        is_end = module is head or module is embedding
        if is_end and not is_ours:
            continue
        if type(module) is nn.Embedding or (is_end and type(module) is nn.Linear):
            kinds[stored(f"{name}.weight")] = "end"
        elif type(module) is nn.Linear:
            kinds[stored(f"{name}.weight")] = "product"
        elif type(module).__name__ == "Conv1D":
            kinds[stored(f"{name}.weight")] = "turned"
    return kinds


def ends_are_ours(head: nn.Module, *, is_tied: bool) -> bool:
    """Whether embedding and output matrix can be parts of ours; one matrix that is both can if the output does nothing else."""
    return not is_tied or type(head) is nn.Linear


def stored_names(model: nn.Module) -> Callable[[str], str]:
    """From a name in the class to the one in files. Raises Unsuitable where files have other tensors than the class."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import PrefixChange, WeightConverter

    changes = [change for change in get_model_conversion_mapping(model, add_legacy=False) if not isinstance(change, PrefixChange)]
    if any(isinstance(change, WeightConverter) for change in changes):
        raise Unsuitable("files have its tensors in other pieces")
    renamings = [change.reverse_transform() for change in reversed(changes)]

    def stored(name: str) -> str:
        for renaming in renamings:
            name, _ = renaming.rename_source_key(name)
        return name

    return stored


@contextmanager
def without_weights() -> Iterator[None]:
    """While entered, modules of any thread are made with parameters that have no data, and with buffers that have."""
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:  # one that is, another module has too
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=False)
        register(module, name, parameter)

    with _patching:
        nn.Module.register_parameter = on_meta
        try:
            yield
        finally:
            nn.Module.register_parameter = register
