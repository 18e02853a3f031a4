"""Wheels of two versions, each made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.upgrade.training import clean_up
from tests.upgrade.versions import Prefix, new_prefix, wheel_of_last_release, wheel_of_this_version


@pytest.fixture(scope="session")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the last release."""
    return wheel_of_last_release(tmp_path_factory.mktemp("earlier"))


@pytest.fixture(scope="session")
def present(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the code that is tested."""
    return wheel_of_this_version(tmp_path_factory.mktemp("present"))


@pytest.fixture(scope="session")
def earlier_prefix(tmp_path_factory: pytest.TempPathFactory, earlier: Path) -> Prefix:
    """An environment with the last release, which stays as it is."""
    return new_prefix(tmp_path_factory.mktemp("earlier-prefix") / "venv", earlier)


@pytest.fixture(scope="session")
def present_prefix(tmp_path_factory: pytest.TempPathFactory, present: Path) -> Prefix:
    """An environment with the code that is tested, which stays as it is."""
    return new_prefix(tmp_path_factory.mktemp("present-prefix") / "venv", present)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder. What runs in it in the end is killed."""
    yield tmp_path
    clean_up(tmp_path)
