"""A checkpoint of each format, written by the format's own tool, answers at the endpoint of a real server."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests import models
from tests.e2e.server import LiveServer, serve
from tests.engine.quant.checkpoints import EVERY

PROMPT = "Blocks of the cache"


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """The dense model is loaded; those that were made of it lie in a folder that the server knows."""
    made = models.quantized(EVERY[0]).parent
    options = ("--models-folders", str(made), "--kv-disk-space", "0", "--kv-cache-memory", "16MiB", "--swap-space", "1MiB")
    with serve(tmp_path_factory.mktemp("formats"), *options, model=models.quantized("tiny-base", of=".")) as server:
        yield server


def likeliest(server: LiveServer, model: str) -> dict[str, float]:
    """The tokens that the model finds likeliest after the prompt, with their log probabilities."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": 4, "temperature": 0, "logprobs": 5}
    (choice,) = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).raise_for_status().json()["choices"]
    assert choice["finish_reason"] in ("length", "stop")
    return choice["logprobs"]["top_logprobs"][0]


@pytest.mark.parametrize("name", EVERY)
def test_every_format_is_served(formats: LiveServer, name: str) -> None:
    models.quantized(name)
    dense, quantised = likeliest(formats, "smollm2"), likeliest(formats, name)
    assert len(quantised) == 5 and all(value <= 0 for value in quantised.values())
    if "-2-" not in name and "w2a16" not in name:  # two bits leave little of a random model
        assert dense.keys() & quantised.keys()
