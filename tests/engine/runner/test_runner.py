from __future__ import annotations

import random

import psutil
import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.runner.runner import ModelRunner
from engine.types import Moves, Sequence, StepPlan
from engine.weights.loader import open_checkpoint
from tests import models
from tests.engine.models import tiny
from tests.engine.runner.feeding import answer, entry, placed, steps
from tests.engine.runner.sequences import sequence

PROMPTS = [random.Random(n).choices(range(99), k=n) for n in (150, 1, 23)]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """(folder, transformers' model) of a tiny llama with a window of 256 tokens."""
    folder = tmp_path_factory.mktemp("tiny")
    return folder, tiny.saved(folder, "llama", max_position_embeddings=256)


@pytest.fixture
def runner(reference) -> ModelRunner:
    return ModelRunner(EngineConfig(block_size=8, kernel_precision="exact"), open_checkpoint(reference[0]))


def test_a_chunk_in_mid_prompt_draws_nothing_and_the_last_one_draws_once(runner) -> None:
    [seq] = placed(runner, [sequence(PROMPTS[2])])
    drawn = [runner.execute(plan).sampled[0].token_ids for plan in steps([seq], most=9)]
    assert len(drawn) > 2
    assert [len(ids) for ids in drawn] == [0] * (len(drawn) - 1) + [1]


def test_prompt_logprobs_come_chunk_by_chunk_and_are_those_of_transformers(reference, runner) -> None:
    _, model = reference
    expected = [torch.log_softmax(rows, -1) for rows in tiny.logits(model, PROMPTS)]
    seqs = placed(runner, [sequence(list(prompt), prompt_logprobs=2, logprobs=1, temperature=0.0) for prompt in PROMPTS])
    collected = {id(seq): [] for seq in seqs}
    for seq in seqs:
        seq.prompt_logprobs = [None]
    for plan in steps(seqs, most=70, all_logits=True):
        for planned, sampled in zip(plan.entries, runner.execute(plan).sampled, strict=True):
            collected[id(planned.seq)] += sampled.prompt_logprobs
            assert (sampled.logprobs is not None) == planned.samples
    for seq, rows in zip(seqs, expected, strict=True):
        got = collected[id(seq)]
        assert [one.token_id for one in got] == seq.token_ids[1:]
        for one, row in zip(got, rows, strict=False):
            assert one.logprob == pytest.approx(row[one.token_id].item(), abs=1e-3)
            assert one.rank == 1 + int((row > row[one.token_id]).sum())
            assert [i for i, _ in one.top] == row.topk(2).indices.tolist()


def test_recomputed_answer_tokens_have_no_prompt_logprobs(runner) -> None:
    [seq] = placed(runner, [sequence(list(range(12)), n_output=4, prompt_logprobs=0)])
    seq.prompt_logprobs = [None]
    sampled = runner.execute(StepPlan((entry(seq, 12, n_logits=12),), ())).sampled[0]
    assert [one.token_id for one in sampled.prompt_logprobs] == list(range(1, 8))


@pytest.mark.parametrize("kv_dtype", ["float32", "fp8_e4m3", "int8"])
def test_copied_blocks_hold_what_their_source_held_before_the_step_wrote(reference, kv_dtype: str) -> None:
    """Two continuations of one half-filled block: the second writes into a copy, the first into the block itself."""
    config = EngineConfig(block_size=8, kernel_precision="exact", kv_cache_dtype=kv_dtype)
    runner = ModelRunner(config, open_checkpoint(reference[0]))
    first, second = sequence(PROMPTS[2][:12], temperature=0.0), sequence(PROMPTS[2][:12], temperature=0.0)
    placed(runner, [first], n_more=4)
    runner.execute(StepPlan((entry(first, 12),), ()))
    copy = next(i for i in range(runner.kv_groups[0].n_blocks) if i not in first.tables[0])
    second.tables = [[first.tables[0][0], copy]]
    for seq, token_id in ((first, 5), (second, 77)):
        seq.token_ids.append(token_id)
        seq.n_computed = 12
    runner.move((Moves(copies=((first.tables[0][1], copy),)),))
    plan = StepPlan((entry(first, 1), entry(second, 1)), ())
    together = [sampled.token_ids for sampled in runner.execute(plan).sampled]
    for seq, token_ids in zip((first, second), together, strict=True):
        [alone] = placed(runner, [sequence(list(seq.token_ids), temperature=0.0)])
        assert runner.execute(StepPlan((entry(alone, 13),), ())).sampled[0].token_ids == token_ids


def test_ids_past_the_tokenizers_vocabulary_are_not_drawn(reference) -> None:
    runner = ModelRunner(EngineConfig(), open_checkpoint(reference[0]), n_vocab=3)
    seqs = placed(runner, [sequence([i], seed=i) for i in range(60)])
    result = runner.execute(StepPlan(tuple(entry(seq, 1) for seq in seqs), ()))
    assert {sampled.token_ids[0] for sampled in result.sampled} == {0, 1, 2}


def test_seeded_answers_do_not_depend_on_chunks_or_company(runner) -> None:
    def sequences() -> list[Sequence]:
        return [
            sequence(list(prompt), seed=40 + i, temperature=0.9, top_p=0.95, repetition_penalty=1.1)
            for i, prompt in enumerate(PROMPTS)
        ]

    together = placed(runner, sequences(), n_more=20)
    answer(runner, together, 20, most=11)
    for i, alone in enumerate(sequences()):
        answer(runner, placed(runner, [alone], n_more=20, seed=i), 20, most=256)
        assert alone.token_ids == together[i].token_ids
        assert alone.n_output == 20


def test_weights_and_formats_tell_caches_apart(reference, tmp_path) -> None:
    checkpoint = open_checkpoint(reference[0])
    tiny.saved(tmp_path, "llama", max_position_embeddings=256, tie_word_embeddings=True)
    runners = [
        ModelRunner(EngineConfig(), checkpoint),
        ModelRunner(EngineConfig(kv_cache_dtype="float32"), checkpoint),
        ModelRunner(EngineConfig(kv_cache_dtype="int8"), checkpoint),
        ModelRunner(EngineConfig(kv_cache_dtype="fp8_e4m3"), checkpoint),
        ModelRunner(EngineConfig(kv_cache_dtype="float16", kernel_precision="exact"), checkpoint),
        ModelRunner(EngineConfig(), open_checkpoint(tmp_path)),
        ModelRunner(EngineConfig(block_size=32), checkpoint),
    ]
    assert len({tuple(runner.kv_extras.items()) for runner in runners}) == len(runners)
    assert runners[0].kv_extras == ModelRunner(EngineConfig(), checkpoint).kv_extras


@pytest.mark.parametrize("kv_dtype, tolerance", [("float16", 1e-2), ("bfloat16", 5e-2), ("int8", 5e-2), ("fp8_e4m3", 5e-2)])
def test_a_narrower_cache_stays_close(reference, kv_dtype, tolerance) -> None:
    folder, model = reference
    runner = ModelRunner(EngineConfig(kv_cache_dtype=kv_dtype, kernel_precision="exact"), open_checkpoint(folder))
    [seq] = placed(runner, [sequence(PROMPTS[0], logprobs=0, temperature=0.0)])
    [[*_, last]] = [[runner.execute(plan).sampled[0] for plan in steps([seq], most=32)]]
    row = torch.log_softmax(tiny.logits(model, PROMPTS[:1])[0][-1], -1)
    assert last.logprobs[0].logprob == pytest.approx(row[last.token_ids[0]].item(), abs=tolerance)


def test_a_cache_of_8_bits_takes_a_quarter_of_the_memory_and_int8_that_of_its_scales(reference) -> None:
    runners = {
        name: ModelRunner(EngineConfig(kv_cache_dtype=name, kv_cache_memory=1 << 20), open_checkpoint(reference[0]))
        for name in ("float32", "fp8_e4m3", "int8")
    }
    per_token = {name: runner.kv_groups[0].block_bytes / 16 for name, runner in runners.items()}
    model = runners["int8"].model_config
    assert per_token["fp8_e4m3"] == per_token["float32"] / 4
    assert per_token["int8"] == per_token["fp8_e4m3"] + 2 * 4 * model.n_layers * model.n_kv_heads
    dtypes = {"float32": torch.float32, "fp8_e4m3": torch.float8_e4m3fn, "int8": torch.int8}
    for name, runner in runners.items():
        caches = [runner.kv.layer(i) for i in range(model.n_layers)]
        tensors = [tensor for k, v, scales in caches for tensor in (k, v, *(scales or ()))]
        assert {tensor.dtype for tensor in tensors[:2]} == {dtypes[name]}
        assert sum(tensor.nbytes for tensor in tensors) == runner.kv_bytes


@pytest.mark.parametrize(
    ("kv_dtype", "dtype"), [("auto", torch.bfloat16), ("int8", torch.int8), ("fp8_e4m3", torch.float8_e4m3fn)]
)
def test_bfloat16_activations_run_and_stay_close(reference, kv_dtype: str, dtype: torch.dtype) -> None:
    folder, model = reference
    runner = ModelRunner(EngineConfig(dtype="bfloat16", kv_cache_dtype=kv_dtype), open_checkpoint(folder))
    assert runner.kv.layer(0)[0].dtype == dtype
    [seq] = placed(runner, [sequence([3, 1, 4], logprobs=0, temperature=0.0)])
    sampled = runner.execute(StepPlan((entry(seq, 3),), ())).sampled[0]
    row = torch.log_softmax(tiny.logits(model, [[3, 1, 4]])[0][-1], -1)
    assert sampled.logprobs[0].logprob == pytest.approx(row[sampled.token_ids[0]].item(), abs=0.3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU here")
def test_a_gpu_that_is_not_there_is_an_error_that_says_so(reference) -> None:
    with pytest.raises(ConfigError, match="torch sees no CUDA device"):
        ModelRunner(EngineConfig(device="cuda"), open_checkpoint(reference[0]))


def test_progress_reaches_the_whole(reference) -> None:
    seen: list[tuple[int, int]] = []
    ModelRunner(EngineConfig(), open_checkpoint(reference[0]), lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen) and seen[-1][0] == seen[-1][1] > 0


def test_cache_memory_is_reserved_not_touched() -> None:
    """An idle server should not hold gigabytes of empty cache."""
    before = psutil.Process().memory_info().rss
    runner = ModelRunner(EngineConfig(kv_cache_memory=1 << 30), open_checkpoint(models.smollm2()))
    assert runner.kv_bytes > 1000 << 20
    assert psutil.Process().memory_info().rss - before < 400 << 20
