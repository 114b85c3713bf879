"""Builds the CPU operators: the sources of kernels/cpu as the extension module of that package, by scikit-build-core and CMake.

hatch_build.py calls make() for wheels and editable installs. `make native` runs this file, which builds in build/native,
puts the module beside its sources, and compiles only what has changed since.

PAGEWELL_NATIVE is one of MODES. CMAKE_ARGS, CMAKE_GENERATOR and CXX mean what they mean everywhere.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from scikit_build_core.builder.builder import Builder
from scikit_build_core.builder.get_requires import GetRequires
from scikit_build_core.cmake import CMake, CMaker
from scikit_build_core.settings.skbuild_model import ScikitBuildSettings
from scikit_build_core.settings.skbuild_read_settings import SettingsReader

ROOT = Path(__file__).parent
PACKAGE = Path("kernels/cpu")
BUILD = ROOT / "build" / "native"
BUILT = BUILD / "built"
"""Made when the module in the package is; make compares its time with those of the sources."""
MODULE = f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
REASON = "_native_missing.txt"
"""File of the package that says why the module is not there."""
MODES = ("auto", "required", "off")
"""auto: where it cannot be built, go on without the module and say so. required: fail then. off: do not compile;
what an earlier build has left in the package stays, for `make` installs with off before it compiles."""


class NotBuilt(Exception):
    """Why there is no module, as one line."""


def mode() -> str:
    """The mode that PAGEWELL_NATIVE asks for. ValueError for one that does not exist."""
    wanted = os.environ.get("PAGEWELL_NATIVE", "") or MODES[0]
    if wanted not in MODES:
        raise ValueError(f"PAGEWELL_NATIVE is {wanted!r}; it can be {', '.join(MODES)}.")
    return wanted


def requirements() -> list[str]:
    """Packages for the build's own environment: CMake and Ninja where the machine has none and they can be of use."""
    if obstacle() is not None:
        return []
    requires = GetRequires(settings())
    return [*requires.cmake(), *requires.ninja()]


def obstacle() -> str | None:
    """What is missing for a build, as far as it can be told without trying."""
    if platform.machine().lower() not in ("x86_64", "amd64", "aarch64", "arm64"):
        return f"the native operators are for x86-64 and ARM64 processors, and this one is {platform.machine()}"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "Python's own headers were not found (on Debian and Ubuntu: apt install python3-dev)"
    if sys.platform == "win32" or re.search("CMAKE_CXX_COMPILER|TOOLCHAIN", os.environ.get("CMAKE_ARGS", ""), re.I):
        return None
    named = (os.environ.get("CXX"), sysconfig.get_config_var("CXX"), "c++", "g++", "clang++")
    if any(name and shutil.which(name.split()[0]) for name in named):
        return None
    return "no C++ compiler was found (on Debian and Ubuntu: apt install g++; on macOS: xcode-select --install)"


def settings() -> ScikitBuildSettings:
    """What pyproject.toml and SKBUILD_... in the environment ask for."""
    return SettingsReader.from_file(ROOT / "pyproject.toml", state="wheel").settings


def make(scratch: Path) -> Path:
    """The module, built in an empty folder, or a file that says why there is none. NotBuilt if that is not allowed."""
    if sys.platform == "darwin":
        # For the compiler and for the wheel's tag alike; std::atomic::wait came with macOS 11.
        os.environ.setdefault("MACOSX_DEPLOYMENT_TARGET", "11.0")
    try:
        if mode() == "off":
            raise NotBuilt("PAGEWELL_NATIVE was off when Pagewell was installed")
        with _kept_together():
            build(Path(settings().build_dir or scratch / "build"), install_dir=scratch)
            try_import(scratch / PACKAGE / MODULE)
        return scratch / PACKAGE / MODULE
    except NotBuilt as error:
        if mode() == "required":
            raise
        warn(str(error))
        (scratch / REASON).write_text(f"{error}\n", "utf-8")
        return scratch / REASON


def place(made: Path) -> None:
    """Put what make() returned beside the sources, in place of what an earlier build has left there."""
    for name in (MODULE, REASON):
        (ROOT / PACKAGE / name).unlink(missing_ok=True)
    shutil.copy(made, ROOT / PACKAGE)


def build_in_place() -> None:
    """Build in build/native what has changed, straight into the package. NotBuilt if that fails.

    Then no module is left there: an old one would not suit the Python code around it.
    """
    package = ROOT / PACKAGE
    BUILT.unlink(missing_ok=True)
    began = time.time()
    try:
        build(BUILD, CMAKE_LIBRARY_OUTPUT_DIRECTORY=package, PAGEWELL_TESTS=True)
        try_import(package / MODULE)
    except NotBuilt as error:
        (package / MODULE).unlink(missing_ok=True)
        (package / REASON).write_text(f"{error}\n", "utf-8")
        raise
    (package / REASON).unlink(missing_ok=True)
    BUILT.touch()
    os.utime(BUILT, (began, began))  # sources may have changed meanwhile


def build(build_dir: Path, *, targets: Sequence[str] = (), install_dir: Path | None = None, **defines: str | bool | Path) -> None:
    """Have CMake build in build_dir what is not built yet, and install below install_dir. NotBuilt if that fails."""
    if (reason := obstacle()) is not None:
        raise NotBuilt(reason)
    try:
        options = settings()
        cmake = CMake.default_search(version=options.cmake.version, env=os.environ)
        # CMaker empties a folder that another environment has built in, whose CMake and nanobind may be gone; `fresh`
        # does so where CMake was called by hand, perhaps for another build program.
        by_hand = not (build_dir / ".skbuild-info.json").exists()
        builder = Builder(options, CMaker(cmake, ROOT / PACKAGE, build_dir, build_type="Release", fresh=by_hand))
        builder.configure(defines=defines)
        builder.config.build(targets=targets)
        if install_dir is not None:
            builder.install(install_dir)
    except (Exception, SystemExit) as error:
        raise NotBuilt(str(error) or type(error).__name__) from error


def try_import(module: Path) -> None:
    """NotBuilt if the module cannot be imported: linkers let symbols of a module pass that nobody defines."""
    code = "import importlib.util as u, sys; u.module_from_spec(u.spec_from_file_location('_native', sys.argv[1]))"
    tried = subprocess.run([sys.executable, "-c", code, str(module)], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        why = (tried.stderr.strip().splitlines() or [f"exit status {tried.returncode}"])[-1]
        raise NotBuilt(f"the module was built, but cannot be imported: {why}")


@contextlib.contextmanager
def _kept_together() -> Iterator[None]:
    """What this process and its children print is printed at the end; NotBuilt gains the first error among it."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        sys.stdout.flush()
        sys.stderr.flush()
        shown = [os.dup(1), os.dup(2)]
        try:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            yield
        except NotBuilt as error:
            raise NotBuilt(f"{error}{_first_error(log)}") from error
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, descriptor in enumerate(shown, start=1):
                os.dup2(descriptor, number)
                os.close(descriptor)
            log.seek(0)
            print(log.read(), flush=True)


def _first_error(log: IO[str]) -> str:
    """The first error in the output of CMake or a compiler, on one line, after a colon."""
    log.seek(0)
    found = re.search(r"^.*\berror\b.*(?:\n\s+.*)*", log.read(), re.M | re.I)
    return ": " + " ".join(found[0].split())[:300] if found else ""


def warn(reason: str) -> None:
    """Say that Pagewell will be slow, on the terminal too where an installer keeps a build's output to itself."""
    line = "=" * 100
    text = (
        f"\n{line}\nPagewell is built WITHOUT its native CPU operators: {reason}.\n"
        "It will run on the reference operators, many times slower. Put that right and install again to get them.\n"
        f"{line}\n"
    )
    print(text, file=sys.stderr, flush=True)
    if not sys.stderr.isatty():
        with contextlib.suppress(OSError), open("/dev/tty", "w", encoding="utf-8") as terminal:
            terminal.write(text)


def main() -> int:
    """For `make native`: 0 when the module is built, or when nothing here can build it and that is allowed."""
    if mode() == "off":
        return 0
    try:
        build_in_place()
    except NotBuilt as error:
        warn(str(error))
        return 1 if mode() == "required" or obstacle() is None else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
