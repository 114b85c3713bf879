"""The real models that tests run on. Each function gives a path, or skips the test that asks.

They lie in PAGEWELL_TEST_MODELS, or in the cache folder of this person (pagewell/test-models). The bundled default is
downloaded when it is missing; the others are fetched by tests/fetch_models.py. With --models a missing one is a failure.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
from platformdirs import user_cache_path

from app.catalog import bundled

REQUIRED = False
"""Set by --models: a model that is not there fails the test instead of skipping it."""


@cache
def folder() -> Path:
    """Where the test models lie; outside the repository, shared by all checkouts."""
    named = os.environ.get("PAGEWELL_TEST_MODELS")
    path = Path(named) if named else user_cache_path("pagewell", appauthor=False) / "test-models"
    path.mkdir(parents=True, exist_ok=True)
    return path


@cache
def smollm2() -> Path:
    """SmolLM2-135M-Instruct Q4_1 (llama, ChatML), the bundled default."""
    return bundled.download(folder(), quiet=True)


def gemma() -> Path:
    """Gemma 3 270M base Q4_K_M (gemma3: sliding window, q/k norms, 256k vocabulary)."""
    return _fetched("gemma-3-270m-Q4_K_M.gguf")


def qwen_05b() -> Path:
    """Qwen2.5-Coder-0.5B-Instruct Q4_K_M (qwen2: Q5_0, Q8_0, Q6_K)."""
    return _fetched("Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf")


def qwen_15b() -> Path:
    """Qwen2.5-Coder-1.5B-Instruct Q4_K_M (qwen2: Q4_K, Q6_K)."""
    return _fetched("Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf")


REAL_QUANTIZED = {"smollm2-135m": smollm2, "qwen2.5-coder-0.5b": qwen_05b}
"""Real models of which --real has tests.fixtures.make_quantized make quantised checkpoints."""


def quantized(name: str, of: str = "tiny") -> Path:
    """A checkpoint that a format's own tool wrote, as tests.fixtures.make_quantized names it."""
    path = folder() / "quantized" / of / name
    if path.is_dir():
        return path
    failed = path.with_name(f"{name}.failed")
    reason = failed.read_text() if failed.is_file() else f"{path} is not there"
    reason = f"{reason}; run python -m tests.fixtures.make_quantized{'' if of == 'tiny' else ' --real'}"
    if REQUIRED:
        pytest.fail(reason)
    pytest.skip(reason)


def _fetched(file_name: str) -> Path:
    path = folder() / file_name
    if path.is_file():
        return path
    reason = f"{file_name} is not in {folder()}; run python -m tests.fetch_models"
    if REQUIRED:
        pytest.fail(reason)
    pytest.skip(reason)
