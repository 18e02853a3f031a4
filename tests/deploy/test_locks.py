"""The locks of the images: everything that `pyproject.toml` asks for, in versions that it allows, with hashes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
_PINNED = re.compile(r"([a-z0-9-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)*)")


def _locked(name: str) -> dict[str, str]:
    """Versions by package."""
    return {found[1]: found[2] for found in _PINNED.finditer(_text(name)) if found[3]}


def _text(name: str) -> str:
    return (ROOT / "deploy/docker" / name).read_text()


def test_head_is_locked_as_the_project_asks() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["head"], *extras["postgresql"], *extras["tracing"]]
    asked = [Requirement(line) for line in lines]
    locked = _locked("requirements-head.lock")
    wrong = [
        str(asked_for)
        for asked_for in asked
        if not asked_for.specifier.contains(locked.get(canonicalize_name(asked_for.name), "0"))
    ]
    assert wrong == [], "make lock"


@pytest.mark.parametrize("image", ["trainer", "dashboard"])
def test_all_images_have_the_same_versions(image: str) -> None:
    head, other = _locked("requirements-head.lock"), _locked(f"requirements-{image}.lock")
    assert {name: version for name, version in other.items() if head.get(name, version) != version} == {}


def test_the_dashboard_is_locked_as_the_project_asks() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = _locked("requirements-dashboard.lock")
    asked = [Requirement(line) for line in project["optional-dependencies"]["dashboard"]]
    wrong = [str(one) for one in asked if not one.specifier.contains(locked.get(canonicalize_name(one.name), "0"))]
    assert wrong == [], "make lock"


def test_the_trainer_has_what_it_asks_for() -> None:
    trainer = _locked("requirements-trainer.lock")
    lines = [line for line in _text("requirements-trainer.in").splitlines() if line and not line.startswith("#")]
    assert set(lines) <= trainer.keys(), "make lock"


def test_the_wheel_is_built_as_the_project_asks() -> None:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    lines = [line for line in _text("requirements-build.in").splitlines() if line and not line.startswith("#")]
    assert sorted(lines) == sorted(asked)
    locked = _locked("requirements-build.lock")
    wrong = [one for one in map(Requirement, asked) if not one.specifier.contains(locked.get(one.name, "0"))]
    assert wrong == [], "make lock"


def test_every_package_has_hashes_and_no_index_is_named() -> None:
    for image in ("head", "trainer", "dashboard", "build"):
        name = f"requirements-{image}.lock"
        pinned = re.findall(r"^[a-z0-9-]+==", _text(name), re.MULTILINE)
        assert len(pinned) == len(_locked(name)) > 0
        assert "://" not in _text(name)
