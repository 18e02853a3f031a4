"""A generation of workers compiles nothing that an earlier one has compiled."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from tests.training.compiling import STAGES, over_scales

COMPILERS = (os.environ.get("CXX", "g++"), "clang++")

pytestmark = [
    pytest.mark.training,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="needs a C++ compiler: apt-get install g++"),
]


def test_only_the_first_generation_compiles(tmp_path: Path) -> None:
    found = over_scales(tmp_path)
    assert [(step.stage, step.workers) for step in found] == [
        *[(STAGES[0], 2)] * 2,
        *[(STAGES[1], 3)] * 3,
        *[(STAGES[2], 2)] * 2,
        *[(STAGES[3], 2)] * 2,
    ]
    later = found[2:]
    assert [step.count("miss") for step in later] == [0] * len(later), [step.cache for step in later]
    assert all(step.count("hit") > 0 for step in later)
