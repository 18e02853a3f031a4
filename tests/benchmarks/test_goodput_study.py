"""The pure parts of `benchmarks/studies/goodput.py`."""

from __future__ import annotations

import pytest

from benchmarks.studies.goodput import WORKERS, Reached, digits_rows, taught
from malletrain.model.scaling import ScalingPoint
from malletrain.simulator.replay.job_set import ReplayJob


def test_efficiencies_are_relative_to_one_worker() -> None:
    runs = {1: [Reached(6400, 90.0), Reached(9600, 110.0)], 4: [Reached(16000, None), Reached(None, None)]}
    first, second = digits_rows(runs, 96.0)
    assert (first["samples"], first["efficiency"], first["predicted"]) == (8000, 1.0, 1.0)
    assert (second["samples"], second["reached"], second["efficiency"]) == (16000, 1, 0.5)
    assert second["predicted"] == pytest.approx((96 + 32) / (96 + 128))


def test_a_scale_that_nobody_reached_has_no_efficiency() -> None:
    rows = digits_rows({1: [Reached(6400, 90.0)], WORKERS[-1]: [Reached(None, None)]}, 96.0)
    assert rows[1]["efficiency"] is None
    assert rows[1]["samples"] is None


def test_a_job_makes_progress_by_what_its_samples_teach() -> None:
    curve = (ScalingPoint(1, 100.0), ScalingPoint(4, 400.0))
    job = taught(ReplayJob("N1", "net", 0.0, 1.0, 1.0, 1, 4, 1e6, curve), noise_scale=192.0)
    assert [point.rate for point in job.curve] == pytest.approx([100, 200 * 2 / 3, 300 * 2 / 4, 400 * 2 / 5])
