"""What pyproject.toml promises about the versions of other packages."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
FIRST_THAT_WORKS = {
    "litestar": "2.25",  # NamedDependency, FromPath, JSONBody
    "nh3": "0.3",  # Cleaner, allowed_classes
    "tokenizers": "0.20",  # encode_batch_fast
}


def requirements() -> list[Requirement]:
    return [Requirement(line) for line in tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]]


def lower(requirement: Requirement) -> Version:
    (bound,) = (spec.version for spec in requirement.specifier if spec.operator in (">=", "=="))
    return Version(bound)


@pytest.mark.parametrize("name", FIRST_THAT_WORKS)
def test_no_version_is_allowed_that_lacks_what_is_imported(name: str) -> None:
    (requirement,) = (r for r in requirements() if r.name == name)
    assert lower(requirement) >= Version(FIRST_THAT_WORKS[name])


def test_the_locked_versions_are_within_the_bounds() -> None:
    pins = re.findall(r"(?m)^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text("utf-8"))
    locked = {name.lower().replace("_", "-"): version for name, version in pins}
    for requirement in requirements():
        version = locked.get(requirement.name)
        assert version is None or requirement.specifier.contains(version), requirement
