"""Families with layer norms, or with an MLP without a gate: StarCoder2, Nemotron, Stable LM, Arcee."""

from __future__ import annotations

from dataclasses import replace

from engine.weights.config import ModelConfig
from engine.weights.fields import Fields
from engine.weights.hf.plain import UNGATED, biases, plain
from engine.weights.hf.windows import window_size


def starcoder2(fields: Fields) -> ModelConfig:
    config = plain(
        fields,
        "starcoder2",
        n_kv_heads=2,
        rms_eps=1e-5,
        eps_name="norm_epsilon",
        tie=True,
        activation=("hidden_act", "gelu_pytorch_tanh"),
        activations=UNGATED,
    )
    biased = fields.flag("use_bias", True)
    windows = (window_size(fields, None),) * config.n_layers
    return replace(config, windows=windows, attention_bias=biased, attention_output_bias=biased, mlp_bias=biased)


def nemotron(fields: Fields) -> ModelConfig:
    config = plain(
        fields,
        "nemotron",
        rms_eps=1e-5,
        eps_name="norm_eps",
        activation=("hidden_act", "relu2"),
        activations=UNGATED,
        turned=0.5,
    )
    return replace(config, mlp_bias=fields.flag("mlp_bias", False), **biases(fields))


def arcee(fields: Fields) -> ModelConfig:
    config = plain(fields, "arcee", rms_eps=1e-5, activation=("hidden_act", "relu2"), activations=UNGATED)
    return replace(config, mlp_bias=fields.flag("mlp_bias", False), **biases(fields))


def stablelm(fields: Fields) -> ModelConfig:
    for name in ("qk_layernorm", "use_parallel_residual"):
        if fields.flag(name, False):
            what = "is true, which of Stable LM models is not supported"
            raise fields.bad(name, what, "Take Stable LM 2 1.6B or another model.")
    config = plain(fields, "stablelm", n_kv_heads=32, rms_eps=1e-5, eps_name="layer_norm_eps", turned=0.25)
    return replace(config, attention_bias=fields.flag("use_qkv_bias", False))
