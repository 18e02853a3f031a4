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


def test_with_a_held_batch_each_shape_of_a_pass_is_compiled_once(tmp_path: Path) -> None:
    found = over_scales(tmp_path, arguments=("--hold",))
    # Two sizes of a pass: the first as it is, then one graph for any size. Else there is one pass, of one size.
    assert [step.graphs for step in found] == [2 if step.workers == 2 else 1 for step in found]
    again = [step for step in found if step.stage in STAGES[2:]]
    assert [step.count("miss") for step in again] == [0] * len(again), [step.cache for step in again]
    grown = [step for step in found if step.stage == STAGES[1]]
    assert sum(step.count("miss") for step in grown) > 0, "passes of sizes that were not seen before"
