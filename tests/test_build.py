"""The wheel and the CPU operators in it: built where that is possible, left out with a reason where it is not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import native_build
from tests.test_house import PACKAGES, relative, tracked

ROOT = Path(__file__).parents[1]
COMPILED = (".cpp", ".h")
Build = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Builds a wheel in a folder `wheel` below tmp_path, with variables of the environment changed."""

    def run(**variables: str) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if name not in ("PAGEWELL_NATIVE", "CXX")} | variables
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "wheel")]
        # A session of its own has no terminal to warn on.
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, start_new_session=True)

    return run


@pytest.fixture
def without_compiler(tmp_path: Path) -> dict[str, str]:
    """Variables for a machine that has Python, and npm if this one has it, but no compiler."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("npm", "node", "env"):
        if (found := shutil.which(name)) is not None:
            (folder / name).symlink_to(found)
    return {"PATH": str(folder), "CMAKE_ARGS": ""}


def unpacked(folder: Path) -> tuple[str, Path]:
    """The tag of the only wheel in `folder` / wheel, and a folder with its contents."""
    (wheel,) = (folder / "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    return wheel.stem.split("-", 2)[2], folder / "unpacked"


def in_package(folder: Path, expression: str) -> str:
    """What an expression of the operators' package is, imported from a folder."""
    code = f"from kernels.cpu import launch; print({expression})"
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.build
def test_the_wheel_holds_all_that_a_running_server_needs(build: Build, tmp_path: Path) -> None:
    if (reason := native_build.obstacle()) is not None:
        pytest.skip(f"NO WHEEL WITH NATIVE OPERATORS IS TESTED: {reason}")
    # Where `make native` has built, so that nothing is compiled a second time.
    done = build(PAGEWELL_NATIVE="required", SKBUILD_BUILD_DIR=str(native_build.BUILD))
    assert done.returncode == 0, done.stdout + done.stderr
    tag, folder = unpacked(tmp_path)
    assert tag.startswith(f"cp{sys.version_info.major}{sys.version_info.minor}-") and not tag.endswith("-any")
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    sources = {path for path in tracked() if path.suffix in COMPILED or path.name == "CMakeLists.txt"}
    data = [path for path in tracked() if relative(path).split("/")[0] in PACKAGES and path not in sources]
    assert {relative(path) for path in data} <= names
    assert {f"ui/static/vendor/{name}" for name in json.loads((ROOT / "package.json").read_text("utf-8"))["vendor"]} <= names
    assert not [name for name in names if name.startswith("tests/") or "__pycache__" in name or name.endswith(COMPILED)]
    assert f"kernels/cpu/{native_build.MODULE}" in names
    assert f"kernels/cpu/{native_build.REASON}" not in names
    assert in_package(folder, "launch.native.__file__") == str(folder / "kernels" / "cpu" / native_build.MODULE)


@pytest.mark.build
def test_without_a_compiler_the_wheel_is_made_without_the_operators_and_says_why(
    build: Build, without_compiler: dict[str, str], tmp_path: Path
) -> None:
    done = build(**without_compiler)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WITHOUT its native CPU operators: no C++ compiler was found" in done.stderr
    tag, folder = unpacked(tmp_path)
    assert tag == "py3-none-any"
    assert not list(folder.glob("kernels/cpu/_native*.so"))
    assert in_package(folder, "launch.native") == "None"
    assert "no C++ compiler was found" in in_package(folder, "launch.missing")


@pytest.mark.build
def test_a_build_that_fails_says_what_failed(build: Build, tmp_path: Path) -> None:
    done = build(CXX=shutil.which("false") or "", SKBUILD_BUILD_DIR=str(tmp_path / "build"))
    assert done.returncode == 0, done.stdout + done.stderr
    tag, folder = unpacked(tmp_path)
    assert tag == "py3-none-any"
    reason = (folder / "kernels" / "cpu" / native_build.REASON).read_text("utf-8")
    assert reason.startswith("CMake configuration failed: CMake Error") and "is not able to compile" in reason
    assert reason.strip() in done.stderr


@pytest.mark.build
def test_no_wheel_is_made_without_operators_that_are_required(
    build: Build, without_compiler: dict[str, str], tmp_path: Path
) -> None:
    done = build(**without_compiler, PAGEWELL_NATIVE="required")
    assert done.returncode != 0 and "no C++ compiler was found" in done.stderr
    assert not list(tmp_path.glob("wheel/*.whl"))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package in place of the checkout's."""
    monkeypatch.setattr(native_build, "ROOT", tmp_path)
    monkeypatch.setattr(native_build, "BUILT", tmp_path / "build" / "built")
    monkeypatch.setattr(native_build, "warn", lambda reason: None)
    monkeypatch.delenv("PAGEWELL_NATIVE", raising=False)
    folder = tmp_path / native_build.PACKAGE
    folder.mkdir(parents=True)
    return folder


def test_a_module_that_no_longer_suits_its_sources_does_not_stay(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_build, "obstacle", lambda: "the compiler is gone")
    (package / native_build.MODULE).touch()
    assert native_build.main() == 0
    assert [path.name for path in package.iterdir()] == [native_build.REASON]
    assert (package / native_build.REASON).read_text("utf-8") == "the compiler is gone\n"
    monkeypatch.setenv("PAGEWELL_NATIVE", "required")
    assert native_build.main() == 1


def test_what_is_made_takes_the_place_of_what_an_earlier_build_left(package: Path, tmp_path: Path) -> None:
    (package / native_build.MODULE).touch()
    reason = tmp_path / native_build.REASON
    reason.write_text("no compiler\n", "utf-8")
    native_build.place(reason)
    assert [path.name for path in package.iterdir()] == [native_build.REASON]
    module = tmp_path / native_build.MODULE
    module.touch()
    native_build.place(module)
    assert [path.name for path in package.iterdir()] == [native_build.MODULE]


def test_a_module_that_cannot_be_imported_counts_as_not_built(tmp_path: Path) -> None:
    (tmp_path / native_build.MODULE).write_bytes(b"not a module")
    with pytest.raises(native_build.NotBuilt, match="cannot be imported: ImportError"):
        native_build.try_import(tmp_path / native_build.MODULE)


def test_a_mode_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEWELL_NATIVE", "maybe")
    with pytest.raises(ValueError, match="auto, required, off"):
        native_build.mode()


def test_the_warning_reaches_a_terminal_from_which_it_is_kept() -> None:
    pytest.importorskip("pty")
    kept = "import os; os.dup2(os.open(os.devnull, os.O_WRONLY), 2); import native_build; native_build.warn('no compiler')"
    code = f"import pty, sys; pty.spawn([sys.executable, '-c', {kept!r}])"
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    )
    assert "WITHOUT its native CPU operators: no compiler." in shown.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The Makefile among empty files, with a python and a pagewell that only write down that they were called."""
    if shutil.which("make") is None:
        pytest.skip("there is no make")
    shutil.copy(ROOT / "Makefile", tmp_path)
    inputs = ("pyproject.toml", "constraints.txt", "hatch_build.py", "native_build.py", "package.json", "package-lock.json")
    sources = ("pool.cpp", "rows_kernels.cpp", "simd.h", "CMakeLists.txt")
    for name in (*inputs, *(f"kernels/cpu/{source}" for source in sources)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1e9, 1e9))
    scripts = tmp_path / ".venv" / "bin"
    scripts.mkdir(parents=True)
    (tmp_path / ".venv" / "installed").touch()
    for name, then in (("python", "mkdir -p build/native && touch build/native/built"), ("pagewell", "true")):
        (scripts / name).write_text(f'#!/bin/sh\necho "{name} $1" >>calls\n{then}\n', "utf-8")
        (scripts / name).chmod(0o755)
    return tmp_path


def calls(checkout: Path, *targets: str, **variables: str) -> list[str]:
    """What `make` called."""
    (checkout / "calls").unlink(missing_ok=True)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PAGEWELL"))}
    subprocess.run(["make", "--silent", *targets], cwd=checkout, env=inherited | variables, capture_output=True, check=False)
    return (checkout / "calls").read_text("utf-8").splitlines() if (checkout / "calls").exists() else []


@pytest.mark.parametrize("changed", ["pool.cpp", "rows_kernels.cpp", "simd.h", "CMakeLists.txt"])
def test_make_builds_again_when_a_source_has_changed(checkout: Path, changed: str) -> None:
    assert calls(checkout, "serve") == ["python native_build.py", "pagewell serve"]
    assert calls(checkout, "serve") == ["pagewell serve"]
    (checkout / "kernels" / "cpu" / changed).touch()
    os.utime(checkout / "build" / "native" / "built", (1e9 + 1, 1e9 + 1))
    assert calls(checkout, "serve") == ["python native_build.py", "pagewell serve"]


def test_make_serves_without_operators_unless_they_are_required(checkout: Path) -> None:
    (checkout / ".venv" / "bin" / "python").write_text('#!/bin/sh\necho "python $1" >>calls\nexit 1\n', "utf-8")
    assert calls(checkout, "serve") == ["python native_build.py", "pagewell serve"]
    assert calls(checkout, "serve", PAGEWELL_NATIVE="required") == ["python native_build.py"]


def test_the_build_and_the_developers_environment_ask_for_the_same() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    build = {name for name in pyproject["build-system"]["requires"] if not name.startswith("hatchling")}
    assert build <= {*pyproject["project"]["optional-dependencies"]["native"]}
