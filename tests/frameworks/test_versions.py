"""The environment has all frameworks, in versions that are said to be supported: absent ones would only be skipped."""

from __future__ import annotations

import tomllib
from importlib.metadata import version

import pytest

from tests.frameworks.diffs import EXAMPLES
from tests.frameworks.needing import FRAMEWORKS, need

pytest.importorskip("packaging", reason="needs packaging")

from packaging.requirements import Requirement

pytestmark = pytest.mark.frameworks


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_it_is_here_in_a_version_that_is_supported(name: str) -> None:
    need(name)
    extras = tomllib.loads((EXAMPLES.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {one.name: one for one in map(Requirement, extras["frameworks"] + extras["deepspeed"])}[name]
    assert version(name) in wanted.specifier
