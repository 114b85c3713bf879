"""The plan of the house: which way imports point, how long files are, what has no place in them."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("app", "engine", "kernels", "ui", "tui", "migrations")
MOST_LINES = 500

ALLOWED = {
    "kernels": {"kernels"},
    "engine": {"engine", "kernels"},
    "ui": {"ui"},
    "tui": {"tui"},
    "app": {"app", "engine", "kernels", "ui", "migrations"},
    "migrations": {"migrations", "app"},
}
"""Package -> packages of the house that it may import."""
EXCEPTIONS = {("app/commands/top.py", "tui")}
"""The command line starts the dashboard; everything else of it goes over HTTP."""
TORCH_FREE = ("engine.scheduler", "engine.kv.manager", "engine.kv.blocks", "engine.kv.hashing", "app.settings", "tui", "ui")

MADE = {
    *(".git", ".venv", "__pycache__", "build", "dist", "node_modules", "vendor", ".pytest_cache", ".ruff_cache", ".hypothesis"),
    "serving_config.toml",
}
"""Names of what .gitignore has."""

FORBIDDEN = {
    r"\b(TODO|FIXME|XXX|HACK)\b": "work that is not done",
    r"\bNotImplementedError\b": "a stub",
    r"except( Exception| BaseException)?:\s*\n\s*pass\b": "an error that nobody hears of",
    r"\btrust_remote_code\b|\bauto_map\b": "code of a model that would be run",
    r"^\s*(import|from) (pickle|pydantic)\b": "pickles, or a second schema library",
    r"\btorch\.load\(": "pickles",
    r"pypi\.org|pythonhosted|npmjs\.(org|com)": "the host of a registry",
}
"""Pattern -> what it would be."""


@cache
def tracked() -> tuple[Path, ...]:
    """Files of the repository, new ones too, without what is ignored; outside a git checkout, what an archive would hold."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return tuple(walked(ROOT))
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return tuple(path for name in names if name and (path := ROOT / name).is_file())


def walked(folder: Path) -> Iterator[Path]:
    """Every file below `folder`, except in folders that are made: environments, builds, caches, downloads."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or path.name in MADE or path.name.endswith((".egg-info", ".db")) or path.name.startswith("_native"):
            continue
        if path.is_dir():
            yield from walked(path)
        else:
            yield path


def sources(*suffixes: str) -> list[Path]:
    return [path for path in tracked() if path.suffix in suffixes]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported(path: Path) -> set[str]:
    """Top-level packages that a file imports, inside functions and for type checkers too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package: str) -> None:
    files = [path for path in sources(".py") if relative(path).startswith(f"{package}/")]
    assert files, f"{package} has no modules"
    for path in files:
        for other in imported(path) & {*PACKAGES, "tests"} - ALLOWED[package]:
            assert (relative(path), other) in EXCEPTIONS, f"{relative(path)} imports {other}"


@pytest.mark.parametrize("module", TORCH_FREE)
def test_what_does_not_compute_does_not_import_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_no_file_is_too_long() -> None:
    lengths = {
        relative(path): len(path.read_text("utf-8").splitlines()) for path in sources(".py", ".js", ".css", ".html", ".cpp", ".h")
    }
    assert {name: n for name, n in lengths.items() if n > MOST_LINES} == {}


def test_nothing_is_left_half_done() -> None:
    found = []
    for path in sources(".py", ".js", ".css", ".html", ".toml", ".md", ".sh", ".json", ".cpp", ".h"):
        if path == Path(__file__):
            continue
        text = path.read_text("utf-8")
        found += [
            f"{relative(path)}: {m[0]!r} is {what}"
            for pattern, what in FORBIDDEN.items()
            for m in re.finditer(pattern, text, re.M)
        ]
    assert found == []


def test_every_module_says_what_it_is() -> None:
    files = [path for path in sources(".py") if relative(path).split("/")[0] in PACKAGES]
    silent = [relative(path) for path in files if ast.get_docstring(ast.parse(path.read_text("utf-8"))) is None]
    assert silent == []


def test_every_folder_of_code_is_a_package_with_a_docstring() -> None:
    folders = {path.parent for path in sources(".py") if relative(path).split("/")[0] in PACKAGES}
    missing = [relative(f) for f in folders if not relative(f).startswith("migrations") and not (f / "__init__.py").is_file()]
    assert missing == []


def test_without_git_the_same_files_are_found() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("there is no git checkout to compare with")
    below = {path for path in tracked() if not path.is_symlink()}
    assert {path for path in walked(ROOT) if relative(path).split("/")[0] in {*PACKAGES, "tests", "docs"}} == {
        path for path in below if relative(path).split("/")[0] in {*PACKAGES, "tests", "docs"}
    }


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md", "docs/connectors.md", "docs/building.md"])
def test_every_path_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    folders = "|".join((*PACKAGES, "installers", "tests", "docs"))
    named = set(re.findall(rf"(?<![\w/.])(?:{folders})/[\w./-]*[\w/]", text))
    assert named
    assert {name for name in named if not (ROOT / name).exists()} == set()
    modules = set(re.findall(r"`(\w+\.(?:py|sh|md))`", text))
    assert modules <= {path.name for path in tracked()}


def test_versions_are_bounded_on_both_sides() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    for requirement in wanted:
        spec = requirement.split(";")[0]
        assert "==" in spec or (">=" in spec and "<" in spec), requirement


def test_constraints_suit_every_build_of_torch() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if line and not line.startswith("#")]
    assert len(lines) > 40
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines), (
        "a pin with a local version, or something else than a pin"
    )
    assert not [line for line in lines if re.match(r"torch|triton|nvidia|cuda", line)]


def test_the_scripts_of_the_page_are_pinned_by_hash_and_name_no_registry() -> None:
    package = json.loads((ROOT / "package.json").read_text("utf-8"))
    lock = json.loads((ROOT / "package-lock.json").read_text("utf-8"))
    assert all(re.fullmatch(r"[0-9a-f]{64}", file["sha256"]) for file in package["vendor"].values())
    for name, entry in lock["packages"].items():
        assert "resolved" not in entry, name
        assert not name or entry["integrity"].startswith("sha512-"), name
