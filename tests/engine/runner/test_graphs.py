"""Recorded steps compute what the model does operator by operator, bit for bit, whatever their sizes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.runner.graphs import Recording, Unrecordable
from engine.runner.runner import ModelRunner
from engine.types import StepPlan
from engine.weights.loader import open_checkpoint
from kernels.conformance_weights import random_weight
from kernels.cpu import launch, linear, rows
from tests import models
from tests.engine.models import tiny
from tests.engine.models.test_families import MODELS
from tests.engine.runner.feeding import entry, placed, steps
from tests.engine.runner.sequences import sequence

pytestmark = pytest.mark.skipif(launch.missing is not None, reason=f"no native operators: {launch.missing}")

MOST_ROWS = 40


def weights(*shapes: tuple[int, int]) -> list[linear.PackedWeight]:
    generator = torch.Generator().manual_seed(3)
    return [linear.pack(random_weight("Q4_1", n_out, n_in, generator)) for n_out, n_in in shapes]


def test_a_chain_of_operators_is_replayed_for_any_number_of_rows() -> None:
    q, k, down = weights((64, 64), (96, 64), (64, 96))
    norm = torch.rand(64)
    given = torch.randn(MOST_ROWS, 64, generator=torch.Generator().manual_seed(4))
    x = given.clone()

    def layers(x: Tensor) -> Tensor:
        residual = x
        for _ in range(3):
            y = rows.rms_norm(x, norm, 1e-5)
            mixed, wide = linear.quant_linears(y, (q, k), (None, None))
            heads = rows.rms_norm(mixed.unflatten(-1, (4, 16)), norm[:16], 1e-5).flatten(1)
            x, residual = rows.rms_norm_add(heads, residual, norm, 1e-6)
            x, residual = rows.rms_norm_add(linear.quant_linear(rows.silu_mul(wide, wide), down), residual, norm, 1e-6)
        return x

    recording = Recording(lambda: layers(x[:2]), MOST_ROWS)
    for n in (1, 7, MOST_ROWS, 2, 1):
        x[:n] = given.flip(0)[:n]
        assert torch.equal(recording.replay(n), layers(x[:n].clone())), n


def test_while_one_thread_records_another_computes() -> None:
    x = torch.randn(2, 64)
    wanted = rows.silu_mul(x, x)
    calls: list[tuple] = []
    found: list[Tensor] = []
    with launch.recording(lambda op, args: calls.append(args), torch.empty):
        beside = threading.Thread(target=lambda: found.append(rows.silu_mul(x, x)))
        beside.start()
        beside.join()
        assert calls == []
        rows.silu_mul(x, x)
        with pytest.raises(RuntimeError, match="already"), launch.recording(lambda op, args: None, torch.empty):
            pass
    assert len(calls) == 1 and torch.equal(found[0], wanted) and torch.equal(rows.silu_mul(x, x), wanted)


def test_columns_of_a_result_keep_their_place_in_its_rows() -> None:
    (both,) = weights((96, 64))
    x = torch.randn(MOST_ROWS, 64)

    def halves(x: Tensor) -> Tensor:
        y = linear.quant_linear(x, both)
        return rows.silu_mul(y[:, :48], y[:, 48:])

    recording = Recording(lambda: halves(x[:2]), MOST_ROWS)
    assert torch.equal(recording.replay(MOST_ROWS), halves(x))


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda x: rows.silu_mul(x, x) * 2, "aten.mul"),
        (lambda x: rows.silu_mul(x.repeat(1, 2), x), "aten"),
        (lambda x: rows.silu_mul(rows.silu_mul(x, x)[1:].expand(2, 64), x), "middle of a result"),
        (lambda x: rows.silu_mul(x, x)[:, 1:], "part of"),
        (lambda x: x, "from elsewhere"),
    ],
)
def test_what_cannot_be_replayed_is_refused(fn: Callable[[Tensor], Tensor], reason: str) -> None:
    x = torch.randn(2, 64)
    with pytest.raises(Unrecordable, match=reason):
        Recording(lambda: fn(x), MOST_ROWS)
    assert rows.silu_mul(x, x).shape == (2, 64), "launches compute again after a recording that failed"


def both(path, **knobs) -> tuple[ModelRunner, ModelRunner]:
    """Runners of one model whose steps are recorded and are not."""
    config = {"block_size": 16, "max_model_len": 64, "max_num_batched_tokens": 64, "kv_cache_memory": 32 << 20, **knobs}
    return tuple(ModelRunner(EngineConfig(enforce_eager=eager, **config), open_checkpoint(path)) for eager in (False, True))


def states(runner: ModelRunner, prompts: list[list[int]], seed: int) -> list[Tensor]:
    """Hidden states and logits of every step of prompts in ragged batches."""
    found = []
    seqs = placed(runner, [sequence(list(prompt)) for prompt in prompts])
    step = runner.recorded or runner.eager
    for plan in steps(seqs, most=20, seed=seed):
        assert step.holds(plan)
        size = step.prepare(plan)
        found += [step.forward(size).clone(), step.logits(size).clone()]
    return found


PROMPTS = [list(range(i, i + n)) for i, n in enumerate((1, 17, 50, 33, 5))]


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("qwen3_5", "bamba")])  # plain torch computes states
@pytest.mark.parametrize("precision", ["fast", "exact"])
def test_every_family_is_recorded_and_computes_the_same_bits(name: str, precision: str, tmp_path) -> None:
    family, settings = MODELS[name]
    tiny.saved(tmp_path, family, **settings)
    recorded, eager = both(tmp_path, kernel_precision=precision)
    assert recorded.recorded is not None and eager.recorded is None
    with torch.inference_mode():
        for seed in range(3):
            for ours, theirs in zip(states(recorded, PROMPTS, seed), states(eager, PROMPTS, seed), strict=True):
                assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kv_dtype", ["float32", "float16", "bfloat16", "fp8_e4m3", "int8"])
def test_the_bundled_model_gives_the_same_bits(kv_dtype: str) -> None:
    recorded, eager = both(models.smollm2(), kv_cache_dtype=kv_dtype)
    assert recorded.recorded is not None and eager.recorded is None
    with torch.inference_mode():
        for ours, theirs in zip(states(recorded, PROMPTS, 1), states(eager, PROMPTS, 1), strict=True):
            assert torch.equal(ours, theirs)


def test_a_step_larger_than_the_recorded_ones_runs_operator_by_operator(tmp_path) -> None:
    tiny.saved(tmp_path, "llama")
    runner, _ = both(tmp_path, max_num_batched_tokens=16, max_num_seqs=4)
    [seq] = placed(runner, [sequence(PROMPTS[2], temperature=0.0)])
    plan = StepPlan((entry(seq, len(seq.token_ids)),), (), ())
    assert not runner.recorded.holds(plan)
    whole = runner.execute(plan)
    [again] = placed(runner, [sequence(PROMPTS[2], temperature=0.0)])
    for plan in steps([again], most=16):
        assert runner.recorded.holds(plan)
        last = runner.execute(plan)
    assert last == whole


def test_a_model_with_any_other_operator_is_not_recorded(tmp_path) -> None:
    tiny.saved(tmp_path, "llama")
    runner = ModelRunner(EngineConfig(dtype="bfloat16"), open_checkpoint(tmp_path))
    assert runner.recorded is None
