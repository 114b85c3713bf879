"""`bench blocks`: each size is measured, and what it trades is in the figures."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from app.bench import blocks, replay
from app.bench.blocks import Speeds
from app.cli import cli
from tests import models

TINY = ("--tokens", "256", "--decodes", "4", "--rounds", "1", "--turns", "4")


def test_the_command_measures_every_size_on_a_model_and_on_the_mix(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    command = ["bench", "blocks", str(models.smollm2()), *TINY, "--json", str(path)]
    result = CliRunner().invoke(cli, command, catch_exceptions=False)
    rows = json.loads(path.read_text())["rows"]
    assert [row["block_size"] for row in rows] == [16, 32, 64, 128] and len(result.stdout.splitlines()) == 5
    for row in rows:
        names = ("prefill_tok_s", "decode_tok_s", "prefill_host_s", "decode_host_s", "admit_s")
        assert all(row[name] > 0 and len(row["rounds"][name]) == 1 for name in names)
        assert row["decode_host_s"] < 1 / row["decode_tok_s"], "the host's part is a part of the step"
    assert all(ratio == 1 for ratio in rows[0]["ratios"].values())


def test_larger_blocks_find_less_again_and_leave_more_empty() -> None:
    rows = [blocks.found(size, 20, seed=0) for size in (16, 128)]
    small, large = (list(row["found"].values()) for row in rows)
    assert all(a > b > 0 for a, b in zip(small, large, strict=True))
    assert 0 < rows[0]["waste"] < rows[1]["waste"]


def test_waste_is_the_empty_room_of_the_last_blocks() -> None:
    calls = [replay.Call("chat", [0] * 30, [0] * 3), replay.Call("chat", [0] * 64, [])]
    assert replay.waste(calls, 32) == 1 - 97 / 128 and replay.waste(calls, 1) == 0


def test_ratios_are_medians_of_each_rounds_ratio() -> None:
    def speeds(size: int, *values: float) -> Speeds:
        return Speeds(size, *([list(values)] * 5))

    result = speeds(32, 2.0, 8.0, 3.0).result(speeds(16, 1.0, 2.0, 3.0))
    assert result["decode_tok_s"] == 3.0 and result["ratios"]["decode_tok_s"] == 2.0
