"""Threads of the native operators and of torch."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.runner import cores, threads
from engine.runner.runner import ModelRunner
from engine.weights.loader import open_checkpoint
from kernels.cpu import launch
from tests.engine.models import tiny


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    yield
    threads.use(None)


def native() -> int | None:
    return launch.native.n_threads() if launch.missing is None else None


def test_the_number_asked_for_is_used_and_by_default_that_of_the_cores() -> None:
    threads.use(3)
    assert torch.get_num_threads() == 3 and native() in (3, None)
    threads.use(None)
    assert torch.get_num_threads() == cores.physical() and native() in (cores.physical(), None)


@pytest.mark.skipif(launch.missing is not None, reason=f"no native operators: {launch.missing}")
def test_torch_keeps_to_one_thread_unless_a_model_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_with_torch", weakref.WeakSet())
    tiny.saved(tmp_path, "llama")
    ModelRunner(EngineConfig(threads=2), open_checkpoint(tmp_path))
    assert (torch.get_num_threads(), native()) == (1, 2)
    plain = ModelRunner(EngineConfig(threads=2, dtype="bfloat16"), open_checkpoint(tmp_path))
    assert (torch.get_num_threads(), native()) == (2, 2)
    ModelRunner(EngineConfig(threads=2), open_checkpoint(tmp_path))
    assert torch.get_num_threads() == 2, "the model before it computes with torch"
    del plain
    gc.collect()
    ModelRunner(EngineConfig(threads=2), open_checkpoint(tmp_path))
    assert torch.get_num_threads() == 1


def test_more_threads_than_the_machine_has_are_said_to_wait_for_each_other(caplog: pytest.LogCaptureFixture) -> None:
    threads.use(cores.logical())
    assert not caplog.records
    threads.use(cores.logical() + 1)
    assert [f"share {cores.logical()} hardware threads" in record.getMessage() for record in caplog.records] == [True]
