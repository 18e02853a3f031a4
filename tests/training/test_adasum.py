"""The example with Adasum: the sum itself, and a training over changes of scale."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("sklearn", reason="needs scikit-learn")

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.generations import Launcher
from tests.support.waiting import wait_until

SCRIPT = Path(__file__).parents[2] / "examples" / "adasum" / "train.py"


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("adasum_example", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ADASUM = example()
NUMBERS = st.lists(st.floats(-100, 100, width=32), min_size=4, max_size=4)


def test_gradients_that_have_nothing_in_common_are_added() -> None:
    assert ADASUM.adasum(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])).tolist() == [3.0, 4.0]


def test_gradients_of_one_direction_are_averaged() -> None:
    assert ADASUM.adasum(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
    assert ADASUM.adasum(torch.tensor([2.0, 4.0]), torch.tensor([4.0, 8.0])).tolist() == [3.0, 6.0]


def test_no_gradient_changes_nothing() -> None:
    assert ADASUM.adasum(torch.zeros(2), torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("workers", range(1, 8))
def test_as_many_equal_gradients_as_one_likes_are_one(workers: int) -> None:
    gradient = torch.tensor([1.0, -2.0, 0.5])
    assert torch.allclose(ADASUM.adasum_of([gradient] * workers), gradient)


@given(NUMBERS, NUMBERS)
def test_which_of_two_comes_first_does_not_matter(first: list[float], second: list[float]) -> None:
    one, other = torch.tensor(first, dtype=torch.float64), torch.tensor(second, dtype=torch.float64)
    assert torch.allclose(ADASUM.adasum(one, other), ADASUM.adasum(other, one))


@pytest.mark.training
@pytest.mark.timeout(300)
def test_it_learns_over_changes_of_scale(tmp_path: Path) -> None:
    launcher = Launcher(SCRIPT, tmp_path, preloaded=("sklearn.datasets",))
    checkpoints = tmp_path / "checkpoints"
    for workers in (2, 3):
        before = {path.name for path in checkpoints.glob("*.pt")}
        with launcher.generation(workers, "--samples", "100000000") as running:
            wait_until(
                lambda before=before: {path.name for path in checkpoints.glob("*.pt")} - before, 60, "a checkpoint"
            )
            assert running.stop() == [0] * workers
    with launcher.generation(2, "--samples", "1") as running:
        assert running.join(60.0) == [0, 0]
    assert json.loads((tmp_path / "completed.json").read_text())["metrics"]["accuracy"] > 0.9
