"""What the doctor says of a machine without loading a model."""

from __future__ import annotations

import pytest

from app import doctor
from app.settings import make
from engine.errors import ConfigError
from engine.runner import cores
from kernels.cpu import launch

needs_native = pytest.mark.skipif(launch.missing is not None, reason=f"no native operators: {launch.missing}")


@needs_native
@pytest.mark.parametrize("n_threads", [None, 1])
def test_the_operators_level_and_their_threads_are_told(n_threads: int | None) -> None:
    report = doctor.examine(make({"threads": n_threads}))
    wanted = n_threads or cores.physical()
    assert report.sections["machine"]["CPU operators"] == (
        f"native, {launch.native.level()} of {', '.join(launch.native.levels())}, {wanted} threads"
    )


def test_fewer_threads_than_cores_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "physical", lambda: 4)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert "threads is 3, of 4 cores that could be used." in doctor.examine(make({"threads": 3})).advice
    for n_threads in (4, None):
        assert not [line for line in doctor.examine(make({"threads": n_threads})).advice if "cores" in line]


@needs_native
def test_a_level_below_the_highest_is_told() -> None:
    levels = launch.native.levels()
    before = launch.native.level()
    try:
        for level in levels:
            launch.native.set_level(level)
            said = [line for line in doctor.examine(make()).advice if launch.LEVEL_ENV in line]
            assert len(said) == (level != levels[-1]) and all(f"at {level}, though" in line for line in said)
    finally:
        launch.native.set_level(before)


def test_without_native_operators_the_reason_and_the_remedy_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "missing", "no compiler was found")
    monkeypatch.setattr(launch, "remedy", "Install one.")
    report = doctor.examine(make())
    assert report.sections["machine"]["CPU operators"] == "plain torch: no compiler was found"
    assert any(line.endswith("no compiler was found. Install one.") for line in report.advice)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "auto"])
def test_activations_without_native_operators_are_told(dtype: str) -> None:
    said = any("no native operators" in line for line in doctor.examine(make({"dtype": dtype, "device": "cpu"})).advice)
    assert said == (dtype in ("float16", "bfloat16"))


def test_an_instruction_set_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "misnamed", True)
    monkeypatch.setattr(launch, "missing", "PAGEWELL_ISA is 'avx1024'")
    with pytest.raises(ConfigError, match="avx1024"):
        doctor.examine(make())
