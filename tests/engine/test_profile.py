"""The profile of a step names its parts and operators, and measures each."""

from __future__ import annotations

import asyncio
import threading

import msgspec
import pytest

from engine.config import EngineConfig
from engine.profile import profile
from kernels.cpu import launch
from tests import models

HOST = {"schedule", "prepare", "sample", "commit", "emit", "rest"}


async def test_every_part_of_a_step_is_there() -> None:
    config = EngineConfig(max_model_len=256, max_num_batched_tokens=32, max_num_seqs=16, kv_cache_memory=256 << 20)
    one, many, prefill = await profile(models.smollm2(), config, 20)
    assert (one.name, one.n_tokens) == ("decode, 1 at once", 1) and (many.n_tokens, prefill.n_tokens) == (16, 32)
    assert set(one.parts) == set(many.parts) == HOST | {"forward", "head"}
    assert set(prefill.parts) >= {"schedule", "prepare", "forward", "commit"} and "sample" not in prefill.parts
    for case in (one, many, prefill):
        assert case.n_steps == 20 and case.step_s > 0
        assert all(seconds >= 0 for seconds in case.parts.values())
        if launch.missing is None:
            assert {"Linears Q4_1", "GatedLinear Q4_1", "PagedAttention"} <= set(case.operators)
            assert ("Linears Q8_0" in case.operators) == ("head" in case.parts)
            assert all(seconds > 0 for seconds in case.operators.values())


async def test_a_short_window_is_filled_again_and_again_and_has_no_prefill_case() -> None:
    cases = await profile(models.smollm2(), EngineConfig(max_model_len=16, max_num_seqs=2, kv_cache_memory=8 << 20), 20)
    assert [case.name for case in cases] == ["decode, 1 at once"]


async def test_answers_that_the_cache_has_no_room_for_are_left_out_or_begin_anew() -> None:
    small = EngineConfig(max_model_len=256, max_num_batched_tokens=64, max_num_seqs=16, kv_cache_memory=25 << 20)
    cases = await profile(models.smollm2(), small, 3)
    assert [case.n_tokens for case in cases] == [1, 64]
    scarce = msgspec.structs.replace(small, max_num_batched_tokens=256, kv_cache_memory=45 << 20)
    cases = await profile(models.smollm2(), scarce, 80)
    assert [case.n_tokens for case in cases] == [1, 16]


@pytest.mark.skipif(launch.missing is not None, reason=f"no native operators: {launch.missing}")
async def test_without_a_recording_there_are_no_operators() -> None:
    config = EngineConfig(max_model_len=256, max_num_seqs=1, enforce_eager=True, kv_cache_memory=32 << 20)
    cases = await profile(models.smollm2(), config, 2)
    assert all(case.operators == {} and case.parts["forward"] > 0 for case in cases)


async def test_who_interrupts_a_profile_waits_for_a_step_and_not_for_all() -> None:
    config = EngineConfig(max_model_len=256, max_num_seqs=1, kv_cache_memory=32 << 20)
    before = set(threading.enumerate())
    running = asyncio.create_task(profile(models.smollm2(), config, 1_000_000))
    await asyncio.sleep(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with asyncio.timeout(60):
        await asyncio.get_running_loop().shutdown_default_executor()
    assert set(threading.enumerate()) <= before
