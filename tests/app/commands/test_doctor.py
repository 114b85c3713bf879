"""`pagewell doctor --profile` for a person and for scripts; the rest of the command runs in tests/e2e."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from app.cli import cli
from engine.profile import Case
from tests import models

CASE = Case("decode, 2 at once", 2, 9, 0.004, {"forward": 0.0025, "head": 0.001, "sample": 0.0003}, {"Linears Q4_1": 0.002})


@pytest.fixture(autouse=True)
def profiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    asked = []

    async def profile(path, config, n_steps):
        asked.append((path, config.threads, n_steps))
        return [CASE]

    monkeypatch.setattr("engine.profile.profile", profile)
    return asked


def doctor(*args: str) -> str:
    result = CliRunner().invoke(cli, ["doctor", str(models.smollm2()), "--profile", *args], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_a_profile_shows_each_step_its_parts_and_its_operators(profiled) -> None:
    lines = doctor("--threads", "3", "--steps", "9").splitlines()
    assert profiled == [(models.smollm2(), 3, 9)]
    assert lines[0] == ("decode, 2 at once: 4.00 ms per step, 500 tok/s; 0.30 ms of it outside the model; medians of 9 steps")
    assert [line.split() for line in lines[1:]] == [
        ["step"],
        ["forward", "2.500", "ms", "62.5%"],
        ["head", "1.000", "ms", "25.0%"],
        ["sample", "0.300", "ms", "7.5%"],
        ["operators"],
        ["Linears", "Q4_1", "2.000", "ms", "50.0%"],
    ]


def test_a_profile_as_json() -> None:
    (case,) = json.loads(doctor("--json"))
    assert case["parts"]["forward"] == 0.0025 and case["host_s"] == pytest.approx(0.0003)
