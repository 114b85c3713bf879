"""Thousands of damaged and lying checkpoints: each one answers, or is refused by a typed error with a remedy."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.engine.weights.fuzz.gguf_tree import read, write
from tests.engine.weights.fuzz.seeds import SEEDS
from tests.engine.weights.fuzz.trial import RAN, attempt

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="address space and guard pages are Linux's")

N_TRIALS = 5070
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("seeds")
    return {name: make(folder) for name, make in SEEDS.items()}


class Trials(NamedTuple):
    results: Counter[str]
    faults: list[str]


def run(seed: Path, other: Path, n: int, scratch: Path) -> Trials:
    command = [sys.executable, "-m", "tests.engine.weights.fuzz.worker", seed, other, "0", str(n), scratch]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    what = {line["case"]: line["what"] for line in lines if "what" in line}
    faults = [f"case {line['case']}, {what[line['case']]}: {line['fault']}" for line in lines if "fault" in line]
    if ended.returncode:
        faults.append(f"the process ended with {ended.returncode} after {lines[-1:]}: {ended.stderr[-3000:]}")
    return Trials(Counter(line["result"] for line in lines if "result" in line), faults)


@pytest.mark.parametrize("name", SEEDS)
def test_a_mutated_checkpoint_answers_or_is_refused(name: str, seeds: dict[str, Path], tmp_path: Path) -> None:
    n = N_TRIALS // len(SEEDS)
    other = next(path for path in seeds.values() if path.is_file() and path != seeds[name])
    results, faults = run(seeds[name], other, n, tmp_path)
    assert not faults, f"{len(faults)} faults; the first: {faults[0]}"
    assert results.total() == n
    # Enough that is deep in the model and enough that is refused, or the mutations are not worth much.
    assert results[RAN] > n // 20 and results["ModelLoadError"] > n // 3


@pytest.mark.parametrize("name", SEEDS)
def test_what_the_mutations_begin_with_is_sound(name: str, seeds: dict[str, Path]) -> None:
    assert attempt(seeds[name]) == RAN
    if seeds[name].is_file():
        assert write(read(seeds[name].read_bytes()))[0] == seeds[name].read_bytes()


@pytest.mark.parametrize(
    ("trial", "seen"),
    [
        ("return str(gguf.mmap.mmap(os.open(path, os.O_RDONLY), 0, access=1)[:4096])", None),
        ("ctypes.string_at(view(path), 4096 + 1)", -signal.SIGSEGV),
        ("ctypes.memset(view(path), 0, 1)", -signal.SIGSEGV),
        ("bytes(2 << 30)", "MemoryError"),
        ("raise KeyError('x')", "KeyError"),
    ],
)
def test_the_trials_see_what_they_look_for(trial: str, seen: int | str | None, tmp_path: Path) -> None:
    """A read behind the file's last page, a write to it, a blow-up and an error of no type are faults."""
    code = f"""
import ctypes, os, sys
from tests.engine.weights.fuzz import worker
from engine.weights.gguf import file as gguf

def view(path):
    global held
    held = gguf.mmap.mmap(os.open(path, os.O_RDONLY), 0, access=1)
    return worker.address_of(held)

def trial(path):
    {trial}

worker.attempt = trial
worker.mutate_gguf.mutated = lambda raw, rng, other: (raw, "nothing")
worker.main(*sys.argv[1:])
"""
    (seed := tmp_path / "seed").write_bytes(bytes(4096))
    (scratch := tmp_path / "scratch").mkdir()
    ended = subprocess.run(
        [sys.executable, "-c", code, seed, seed, "0", "1", scratch], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if isinstance(seen, str):
        assert ended.returncode == 0 and seen in json.loads(ended.stdout.splitlines()[-1])["fault"]
    elif seen is None:
        assert ended.returncode == 0 and "result" in json.loads(ended.stdout.splitlines()[-1])
    else:
        assert ended.returncode == seen
