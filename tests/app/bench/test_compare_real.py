"""`bench compare` for real: Pagewell against Pagewell on the bundled model, with short prompts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from app.bench.others import TOO_MUCH
from tests import models

ROOT = Path(__file__).parents[3]


def test_pagewell_against_itself(tmp_path: Path) -> None:
    again = f"again={sys.executable} -m app.cli serve {{model}} --port {{port}} --threads {{threads}}"
    path = tmp_path / "result.json"
    shape = ["--rounds", "1", "--threads", "1", "--scale", "0.1", "--patience", "0"]
    chosen = [f"--workload={name}" for name in ("decode_4", "prefill_512", "shared_1024")]
    command = [sys.executable, "-m", "app.cli", "bench", "compare", str(models.smollm2()), "--peer", again, *shape, *chosen]
    result = subprocess.run(
        [*command, "--json", str(path), "--logs", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    written = json.loads(path.read_text())
    (model,) = written["models"]
    assert model["errors"] == [] and set(model["commands"]) == {"pagewell", "again"}
    (figures,) = model["rounds"]
    for workloads in figures.values():
        assert list(workloads) == ["start", "decode_4", "prefill_512", "shared_1024", "memory"]
        assert workloads["prefill_512"]["cached_tokens"] <= 3 * 32, "more than the system prompt of the template was known"
        shared = workloads["shared_1024"]
        assert shared["cached_tokens"] > shared["prompt_tokens"] / 4, "three of four prompts find the prefix"
        assert shared["ttft_warm_s"] > 0 and shared["ttft_cold_s"] > 0
        assert workloads["decode_4"]["output_tokens"] == 4 * 13
        assert workloads["memory"]["peak_bytes"] > 98e6
    rows = {(row["workload"], row["figure"]): row["ratios"] for row in model["summary"]}
    assert {("memory", "peak_bytes"), ("decode_4", "decode_tok_per_s"), ("shared_1024", "ttft_warm_s")} <= set(rows)
    if all(found.get("others_cores", 0.0) <= TOO_MUCH for workloads in figures.values() for found in workloads.values()):
        assert rows["memory", "peak_bytes"]["again"]["median"] > 0.5 and "x again" in result.stdout  # else left out
    assert written["servers"]["pagewell"]["command"][-2:] == ["--threads", "{threads}"] and written["machine"]["n_threads"]
    assert [log.name for log in (tmp_path / models.smollm2().stem / "round-1").glob("*.log")]
