"""What is learned does not depend on rescales."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("sklearn", reason="needs scikit-learn")

from tests.training.rescaling import with_torch

RESCALES = 10
SAMPLES = 30_000

pytestmark = [pytest.mark.training, pytest.mark.timeout(240)]


def test_with_the_batch_held_ten_rescales_change_nothing(tmp_path: Path) -> None:
    static = with_torch(tmp_path / "static", SAMPLES, 0, 0, "--hold-batch")
    elastic = with_torch(tmp_path / "elastic", SAMPLES, 0, RESCALES, "--hold-batch")
    assert elastic.rescales == RESCALES
    assert elastic.samples == static.samples
    # The same batches in the same order; sums are rounded differently.
    assert elastic.loss == pytest.approx(static.loss, rel=0.02)
    assert elastic.accuracy == pytest.approx(static.accuracy, abs=0.006)


def test_with_the_batch_growing_ten_rescales_stay_within_the_noise(tmp_path: Path) -> None:
    elastic = with_torch(tmp_path / "elastic", SAMPLES, 0, RESCALES)
    assert elastic.rescales == RESCALES
    # `python benchmarks/accuracy.py` has what static runs with different seeds reach.
    assert elastic.accuracy > 0.95
