"""`bench formats`: errors against the dense weights are what they are, and every candidate is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from app.bench import formats
from app.bench.formats import Candidate
from app.cli import cli
from engine.errors import ConfigError
from engine.weights.loader import open_checkpoint
from tests import models
from tests.engine.quant.checkpoints import base, expected


def dense() -> Path:
    return models.quantized("tiny-base", of=".")


@pytest.mark.parametrize(
    ("name", "written", "types"),
    [
        ("autoround-gptq-4-128-sym", "gptq", "INT4 g128"),
        ("llmcompressor-fp8-dynamic", "compressed-tensors, float-quantized", "FP8"),
        ("transformers-nf4-double", "bitsandbytes", "NF4 g64"),
    ],
)
def test_the_error_is_that_of_the_tools_values(name: str, written: str, types: str) -> None:
    row = formats.compared(Candidate(models.quantized(name)), open_checkpoint(dense()))
    pairs = [(parts["dense"], base()[f"{module}.weight"].float()) for module, parts in expected(name).items()]
    differences, squares = (sum(x.square().sum() for x in each) for each in ([a - b for a, b in pairs], [b for _, b in pairs]))
    assert row.error == pytest.approx((differences / squares).sqrt().item(), rel=1e-4)
    assert (row.format, row.types) == (written, types)
    assert {"INT4 g128": 4.25, "FP8": 8, "NF4 g64": 4.5}[types] <= row.bits < {"FP8": 8.2}.get(types, 4.6)


def test_the_command_measures_all_and_writes_the_page(tmp_path: Path) -> None:
    page, path = tmp_path / "formats.md", tmp_path / "result.json"
    command = ["bench", "formats", str(dense()), str(models.quantized("transformers-int8")), "--quantization", "int4"]
    command += ["--rounds", "2", "--decodes", "4", "--markdown", str(page), "--json", str(path)]
    result = CliRunner().invoke(cli, command, catch_exceptions=False)
    rows = json.loads(path.read_text())["rows"]
    assert [row["name"] for row in rows] == ["tiny-base", "--quantization int4", "transformers-int8"]
    assert [row["format"] for row in rows] == ["dense", "on load", "bitsandbytes"]
    assert rows[0]["error"] == 0 < rows[2]["error"] < rows[1]["error"] < 0.2
    assert all(row["decode_tok_s"] > 0 and len(row["rounds"]) == 2 and row["operator"] and row["device"] for row in rows)
    assert all(line in page.read_text() for line in result.stdout.splitlines())


def test_checkpoints_of_another_model_are_refused() -> None:
    with pytest.raises(ConfigError, match="is no quantisation of"):
        formats.compared(Candidate(models.smollm2()), open_checkpoint(dense()))
