"""What real models take of memory, against what was predicted before they were loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.runner.runner import ModelRunner
from engine.weights.loader import open_checkpoint
from kernels.cpu import launch
from tests import models
from tests.engine.models import tiny
from tests.engine.weights.fuzz.seeds import qwen2_gguf

ROOT = Path(__file__).parents[3]
MIB = 1 << 20
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="peaks are read in /proc")
native = pytest.mark.skipif(launch.missing is not None, reason="weights are packed by the native operators")


def run(module: str, *args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", module, *map(str, args)], cwd=ROOT, capture_output=True, text=True, check=False)


@native
@pytest.mark.parametrize(
    ("model", "knobs"),
    [
        ("smollm2", {"kv_cache_memory": 384 * MIB, "max_num_seqs": 16}),
        ("smollm2", {"kv_cache_memory": 192 * MIB, "kv_cache_dtype": "int8", "max_num_seqs": 64, "swap_space": 0}),
        pytest.param("qwen_05b", {"kv_cache_memory": 192 * MIB, "max_num_seqs": 16}, marks=pytest.mark.models),
        pytest.param("gemma", {"kv_cache_memory": 192 * MIB, "max_num_seqs": 16}, marks=pytest.mark.models),
    ],
)
def test_a_model_takes_what_was_predicted(model: str, knobs: dict[str, Any], tmp_path: Path) -> None:
    """Memory is compared, so other programs do not matter; what is small beside these models is Python's own noise."""
    settings = {"device": "cpu", "max_model_len": 1024, "swap_space": 64 * MIB, "threads": 2, **knobs}
    ended = run("tests.engine.runner.peak", qwen2_gguf(tmp_path), getattr(models, model)(), json.dumps(settings))
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert abs(found["measured"] - found["total"]) <= 0.05 * found["total"], found
    # Before the cache is written: this holds where it is small beside the weights, and most of the prediction is the cache's.
    loaded = found["weights"] + found["text"] + found["packing"]
    assert 0.75 * (found["weights"] + found["text"]) < found["loading"] <= 1.05 * loaded + 16 * MIB, found


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma3_text": {"head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 16},
    "qwen3_5_text": {
        **{"head_dim": 32, "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4},
        **{"linear_key_head_dim": 16, "linear_value_head_dim": 16},
    },
    "bamba": {"num_hidden_layers": 3, "attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_state": 16},
}


def _nbytes(tensors: Iterator[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("kv_cache_dtype", ["float32", "int8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_cache_and_host_memory_have_the_very_bytes_that_were_predicted(family: str, kv_cache_dtype: Any, tmp_path: Path) -> None:
    """Of layers with windows and with states too."""
    tiny.saved(tmp_path, family, **FAMILIES[family])
    config = EngineConfig(
        device="cpu", kv_cache_dtype=kv_cache_dtype, kv_cache_memory=2 * MIB, swap_space=1 * MIB, max_num_seqs=4
    )
    runner = ModelRunner(config, open_checkpoint(tmp_path))
    needs = runner.budget.needs
    assert needs.kv == _nbytes(plane for storage in runner.kv.storages for plane in storage.planes) <= 2 * MIB
    assert needs.host == _nbytes(plane for planes in runner.host._planes for plane in planes) <= MIB
    rotary = {tensor.data_ptr(): tensor.nbytes for angles in runner.model._angles for tensor in angles}
    assert sum(rotary.values()) <= needs.step
    if runner.recorded is not None:
        arenas = _nbytes(recording._arena for recording in runner.recorded.recordings)
        assert arenas + sum(rotary.values()) <= needs.step


LITTLE = """
import gc, resource, sys
from pathlib import Path
import psutil
from engine.llm import LLM, SamplingParams

LLM(sys.argv[1], progress=False, kv_cache_memory=1 << 20, swap_space=0, threads=2)  # the operators' threads are there
gc.collect()
left = int(sys.argv[3]) << 20
resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + left, resource.RLIM_INFINITY))
llm = LLM(sys.argv[2], progress=False, threads=2)
prompt = list(range(100, 100 + min(600, llm.info.max_model_len - 8)))
answers = llm.generate([prompt] * 20, SamplingParams(max_tokens=4, ignore_eos=True, logprobs=2))
assert all(len(answer.outputs[0].token_ids) == 4 for answer in answers)
print(llm.info.max_model_len, llm.core.runner.config.max_num_seqs, llm.info.needed_bytes <= left, llm.info.memory_note)
"""


@native
@pytest.mark.parametrize(("mib", "is_short"), [(700, False), (300, True), (200, None)])
def test_with_little_memory_a_model_starts_with_less_and_answers(mib: int, is_short: bool | None, tmp_path: Path) -> None:
    """The limit is the system's own, on the address space; what is taken beyond it fails as it would on a small machine."""
    command = [sys.executable, "-c", LITTLE, qwen2_gguf(tmp_path), models.smollm2(), str(mib)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if is_short is None:
        assert "ConfigError: The model does not fit into memory: weights take 0.09 GiB" in ended.stderr
        return
    assert ended.returncode == 0, ended.stderr
    window, n_seqs, is_within, note = ended.stdout.split(" ", 3)
    assert is_within == "True"
    assert (int(n_seqs) < 64) == ("lowered" in note) == ("Memory is short" in ended.stderr) == is_short, ended.stdout
    assert int(window) >= 1024 or is_short
