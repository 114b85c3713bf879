"""Perplexity: windows as llama-perplexity cuts them, and figures that notice a worse model."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from app.bench import perplexity
from app.cli import cli
from engine.errors import ConfigError
from tests.models import smollm2


def test_windows_are_whole_and_begin_with_the_first_token() -> None:
    assert perplexity.windows(list(range(10, 21)), 1, size=4) == [[1, 11, 12, 13], [1, 15, 16, 17]]
    assert perplexity.windows([5, 6, 7, 8], None, size=2) == [[5, 6], [7, 8]]


def test_the_text_that_comes_along_has_several_windows() -> None:
    assert len(perplexity.TEXT.read_text("utf-8").split()) > 3 * perplexity.WINDOW


def test_fast_products_cost_next_to_nothing() -> None:
    text = " ".join(perplexity.TEXT.read_text("utf-8").split()[:900])
    exact = perplexity.measure(smollm2(), text, **perplexity.EXACT)
    fast = perplexity.measure(smollm2(), text, **perplexity.EXACT | {"kernel_precision": "fast"})
    assert exact.n_tokens == fast.n_tokens >= perplexity.WINDOW // 2 - 1
    assert exact.log_probabilities != fast.log_probabilities
    assert fast.value == pytest.approx(exact.value, rel=0.02)
    assert 0 < perplexity.spread(exact, fast) < 0.3
    assert 0 < perplexity.standard_error(exact, fast) < perplexity.spread(exact, fast) / math.sqrt(exact.n_tokens) * 1.01


def test_the_value_is_that_of_the_probabilities_it_counts() -> None:
    found = perplexity.measure(smollm2(), "one two three four five six seven eight nine ten " * 60, kernel_precision="exact")
    assert found.value == pytest.approx(math.exp(-torch.tensor(found.log_probabilities, dtype=torch.float64).mean().item()))
    assert found.value < 2, "a text that repeats itself is easily foretold"


def test_a_text_shorter_than_a_window_is_refused() -> None:
    with pytest.raises(ConfigError, match="fewer than a window of 512"):
        perplexity.measure(smollm2(), "Too short.")


def test_the_standard_error_is_of_pairs() -> None:
    def found(*log_probabilities: float) -> perplexity.Perplexity:
        return perplexity.Perplexity(1.0, len(log_probabilities), log_probabilities, 0)

    hard_and_easy = found(-9.0, -1.0, -5.0, -0.5)
    assert perplexity.standard_error(hard_and_easy, found(-9.25, -1.25, -5.25, -0.75)) == 0
    assert perplexity.standard_error(hard_and_easy, found(-9.5, -0.5, -5.5, 0.0)) == pytest.approx(math.sqrt(1 / 3) / 2)


CACHES = ("float16", "fp8_e4m3", "int8")


@pytest.mark.parametrize(
    ("caches", "changes"),
    [
        ((), {"default": ("fast", "auto"), "fast": ("fast", "float32")}),
        (CACHES, {f"kv {name}": ("exact", name) for name in CACHES}),
    ],
)
def test_the_command_changes_one_thing_at_a_time(
    caches: tuple[str, ...], changes: dict[str, tuple[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[object, object]] = []

    def measure(model: Path, text: str, **knobs: object) -> perplexity.Perplexity:
        asked.append((knobs["kernel_precision"], knobs["kv_cache_dtype"]))
        n = len(asked) - 1
        return perplexity.Perplexity(2.0 + 0.01 * n, 3, (-1.0, -2.0, -3.0 - 0.1 * n), 4000 - n)

    monkeypatch.setattr(perplexity, "measure", measure)
    path = tmp_path / "result.json"
    arguments = [str(smollm2()), *(f"--kv-cache-dtype={name}" for name in caches), "--json", str(path)]
    result = CliRunner().invoke(cli, ["bench", "perplexity", *arguments], catch_exceptions=False)
    assert asked == [("exact", "float32"), *changes.values()]
    (row,) = json.loads(path.read_text())["models"].values()
    assert (row["n_tokens"], row["exact"], row["kv_token_bytes"]) == (3, 2.0, 4000)
    header, exact, *lines = result.stdout.splitlines()
    assert exact.split() == [smollm2().name, "3", "exact", "2.0000", "4,000"] and len(lines) == len(changes)
    for n, (name, line) in enumerate(zip(changes, lines, strict=True), 1):
        assert row[name]["value"] == pytest.approx(2 + 0.01 * n) and row[name]["over_exact"] == pytest.approx(1 + 0.005 * n)
        assert row[name]["standard_error"] == pytest.approx(0.1 * n / 3) and row[name]["kv_token_bytes"] == 4000 - n
        assert line.split() == [*name.split(), f"2.0{n}00", f"+{0.5 * n:.3f}%", "±", f"{10 * n / 3:.3f}%", f"{4000 - n:,}"]
        assert len(line) == len(header)


def test_a_narrow_cache_of_a_real_model_costs_little_and_the_bytes_are_those_of_its_format() -> None:
    text = " ".join(perplexity.TEXT.read_text("utf-8").split()[:450])
    exact = perplexity.measure(smollm2(), text, **perplexity.EXACT)
    found = {name: perplexity.measure(smollm2(), text, **perplexity.EXACT | {"kv_cache_dtype": name}) for name in CACHES}
    assert exact.kv_token_bytes == 2 * 30 * 3 * 64 * 4
    assert [exact.kv_token_bytes / of_one.kv_token_bytes for of_one in found.values()] == [2, 4, 256 / 68]
    spreads = [perplexity.spread(exact, of_one) for of_one in found.values()]
    assert 0 < spreads[0] < 0.01 and 0.01 < spreads[1] < 0.3 and 0.01 < spreads[2] < 0.1


def test_what_is_no_text_or_no_program_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    result = CliRunner().invoke(cli, ["bench", "perplexity", str(smollm2()), "--text", str(binary)])
    assert isinstance(result.exception, ConfigError) and "is no text in UTF-8" in str(result.exception)
    with pytest.raises(ConfigError, match="cannot be run: Permission denied"):
        perplexity.of_llama_cpp(binary, smollm2(), perplexity.TEXT, 1)
