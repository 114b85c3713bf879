"""transformers as the oracle: a GGUF's weights dequantised by transformers itself, in float32, kept as a dense folder."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import torch

from tests import models


def dense_folder(gguf: Path) -> Path:
    """The GGUF as a float32 folder in Hugging Face layout, converted once (it takes half a minute and more)."""
    from transformers import AutoModelForCausalLM

    target = models.folder() / "dense" / gguf.stem
    if not target.exists():
        partial = target.with_name(target.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        model.hf_quantizer = None  # the weights are dense by now, yet transformers still refuses to save them
        del model.config.quantization_config
        model.save_pretrained(partial)
        partial.rename(target)
    return target


@cache
def _model(gguf: Path):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(dense_folder(gguf), dtype=torch.float32).eval()


@torch.inference_mode()
def greedy(gguf: Path, prompt_token_ids: list[int], n_tokens: int) -> list[int]:
    """The n_tokens most likely tokens, one after another, end tokens treated like any other."""
    model = _model(gguf)
    generated = model.generate(
        torch.tensor([prompt_token_ids]),
        attention_mask=torch.ones(1, len(prompt_token_ids), dtype=torch.long),
        do_sample=False,
        max_new_tokens=n_tokens,
        min_new_tokens=n_tokens,
        repetition_penalty=1.0,
        eos_token_id=[],
        pad_token_id=0,
    )
    return generated[0, len(prompt_token_ids) :].tolist()


def forget() -> None:
    """Give the memory of the loaded models back."""
    _model.cache_clear()
