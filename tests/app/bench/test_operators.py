"""Timings of operators: every one of them is measured from every source that has it, on its own copies, and judged rightly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from app.bench import limits, operators, sampling
from app.bench.limits import Limit, Limits
from app.bench.shapes import PRESETS, Shapes
from app.cli import cli
from kernels.cpu.launch import missing, native
from kernels.ops import OPERATORS
from kernels.registry import implementations

TINY = Shapes("tiny", 64, 96, 4, 2, 16, 320, 2, ("Q4_1", "F16"), 200_000)
LIMITS = Limits("avx2", [Limit("read", 1, n_bytes=1 << 20, rates=[10.0]), Limit("f32", 1, "avx2", rates=[100.0])])
LIMITS.all.append(Limit("int8", 1, "avx2", rates=[400.0]))


@pytest.fixture
def threads() -> Iterator[None]:
    """Restores the number of threads, which the command sets."""
    n_torch, n_native = torch.get_num_threads(), native.n_threads() if native else 0
    yield
    torch.set_num_threads(n_torch)
    if native:
        native.set_threads(n_native)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "BUDGET_S", 0.001)
    monkeypatch.setattr(operators, "CONTEXTS", (40,))
    monkeypatch.setattr(operators, "KV_BYTES", 1 << 16)


def test_each_case_is_measured_from_each_source_that_can_do_it() -> None:
    with torch.inference_mode():
        for case in operators.cases(TINY, (1, 5), TINY.qtypes):
            timings = list(operators.measure(case, LIMITS, 1))
            able = {impl.source for impl in implementations(case.op) if impl.supports(case.spec) is None}
            assert {timing.source for timing in timings} == able
            assert all(timing.seconds > 0 and timing.rows == case.n_rows for timing in timings)
            (reference,) = (timing for timing in timings if timing.source == "reference")
            for timing in timings:
                assert timing.versus_reference == pytest.approx(reference.seconds / timing.seconds)
                assert len(operators.line(timing)) == len(operators.HEADER)


def test_the_cases_cover_the_step_of_a_model() -> None:
    made = list(operators.cases(TINY, (1, 16), ("Q4_0", "Q4_K")))
    assert (
        {case.op for case in made}
        == {*operators.OPS}
        == {*OPERATORS}
        - {
            *("embedding", "gelu_tanh_mul", "copy_blocks"),
            *("layer_norm", "add", "scale_rows", "gelu_tanh", "relu_squared"),  # of few families
            *("causal_conv", "delta_rule", "state_scan", "mul", "sigmoid_mul"),  # of layers with states
            *("route", "experts_gated", "experts_down", "add_gated"),  # of mixtures of experts
            *("heads_linear", "add_scaled"),  # of latents, and of Gemma 4
            *("sample", "logprobs", "uniform", "penalize"),  # measured through the engine's sampler
        }
    )
    assert not [case for case in made if case.spec.qtype == "Q4_K"], "rows of 64 values are no blocks of 256"
    head = next(case for case in made if case.what == "Q4_0 head" and case.n_rows == 16)
    assert (head.n_bytes, head.n_ops, head.n_copies) == (320 * 2 * 18, 2 * 16 * 320 * 64, -(-200_000 // (320 * 2 * 18)))
    layer = {case.what: case for case in made if case.n_rows == 1 and case.op in operators.PRODUCTS}
    assert layer["Q4_0 q, k, v"].n_ops == 2 * 64 * (4 + 2 + 2) * 16 and layer["Q4_0 gate, up"].n_bytes == 2 * 96 * 2 * 18
    decode, batch, prefill, *_ = (case for case in made if case.op == "paged_attention")
    assert decode.n_bytes == 40 * 2 * 16 * 2 * 4 and batch.n_bytes == 8 * decode.n_bytes
    assert decode.n_ops == 4 * 40 * 4 * 16
    assert prefill.n_ops == 4 * 4 * 16 * sum(range(1, 41)), "causal: the first query sees one key, the last all"


def test_a_share_is_of_the_limit_that_takes_longer() -> None:
    product = next(case for case in operators.cases(TINY, (1,), ("Q4_1",)) if case.what == "Q4_1 head")
    read_s = product.n_bytes / 10e9
    assert operators._share(product, "int8", 2 * read_s, LIMITS, 1) == ("read", pytest.approx(0.5))
    product = next(case for case in operators.cases(TINY, (512,), ("Q4_1",)) if case.what == "Q4_1 head")
    assert operators._share(product, "int8", product.n_ops / 100e9, LIMITS, 1) == ("int8", pytest.approx(0.25))
    assert operators._share(product, "f32", product.n_ops / 100e9, LIMITS, 1) == ("f32", pytest.approx(1.0))
    assert operators._share(product, "int8", 1.0, None, 1) == ("", 0.0)


@pytest.mark.skipif(missing is not None, reason=str(missing))
def test_each_call_reads_a_weight_of_its_own() -> None:
    for case in operators.cases(TINY, (1,), ("Q4_1",)):
        if case.op in operators.PRODUCTS:
            for impl in implementations(case.op):
                if impl.supports(case.spec) is None:
                    weights = [_weight(case.make(impl, i)) for i in range(case.n_copies)]
                    assert len({id(weight) for weight in weights}) == case.n_copies >= 3
                    assert _weight(case.make(impl, 0)) is weights[0], "made once for all numbers of rows"


def _weight(args: tuple[Any, ...]) -> Any:
    return args[1][0] if isinstance(args[1], list) else args[1]


def test_the_sampler_is_measured_too() -> None:
    timings = list(sampling.measure(TINY, (2, 512)))
    assert [(timing.what, timing.rows) for timing in timings] == [(way, 2) for way in sampling.WAYS]


@pytest.mark.parametrize(
    "arguments", [["--shapes", "big"], ["--op", "matmul"], ["--op", "embedding"], ["--qtype", "Q9"], ["--source", "triton"]]
)
def test_what_is_not_known_is_named(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli, ["bench", "ops", *arguments])
    assert result.exit_code and arguments[1] in str(result.exception)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("arguments", [["--op", "sample", "--source", "reference"], ["--op", "rms_norm", "--source", "engine"]])
def test_what_cannot_be_measured_is_no_empty_table(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "tiny", TINY)
    monkeypatch.setattr(limits, "_ROUNDS", 64)
    result = CliRunner().invoke(cli, ["bench", "ops", "--shapes", "tiny", "--rows", "1", "--threads", "1", *arguments])
    assert "Nothing was measured" in str(result.exception)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("op", [*operators.OPS, "sample"])
def test_every_operator_can_be_asked_for_alone(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "tiny", TINY)
    monkeypatch.setattr(limits, "_ROUNDS", 64)
    arguments = ["--shapes", "tiny", "--rows", "2", "--qtype", "Q4_1", "--threads", "1", "--op", op]
    result = CliRunner().invoke(cli, ["bench", "ops", *arguments], catch_exceptions=False)
    lines = result.stdout.splitlines()[1:]
    assert lines and all(line.split()[0] == op for line in lines)


@pytest.mark.usefixtures("threads")
def test_the_command_prints_a_line_for_each_and_writes_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(PRESETS, "tiny", TINY)
    monkeypatch.setattr(limits, "_ROUNDS", 64)
    path = tmp_path / "ops.json"
    arguments = ["--shapes", "tiny", "--rows", "1", "--qtype", "Q4_1", "--op", "quant_linear", "--op", "sample", "--threads", "1"]
    result = CliRunner().invoke(cli, ["bench", "ops", *arguments, "--json", str(path)], catch_exceptions=False)
    written = json.loads(path.read_text())
    assert {timing["op"] for timing in written["timings"]} == {"quant_linear", "sample"}
    assert {timing["shapes"] for timing in written["timings"]} == {"tiny"}
    assert (written["limits"]["tiny"] is None) == (missing is not None)
    assert len(result.stdout.splitlines()) == 1 + len(written["timings"])
