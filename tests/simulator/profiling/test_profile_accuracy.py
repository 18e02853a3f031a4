"""Profiles of simulated jobs whose curve is known, through the production Profiler and allocator."""

from __future__ import annotations

import pytest

from malletrain.profiler.machine.scale_selection import ScaleStrategy
from malletrain.simulator.profiling.profile_accuracy import curve_with_knee, profile_of, shapes_of
from malletrain.simulator.replay.job_set import Curves
from malletrain.simulator.replay.presets import MODELS, preset_jobs

PUBLISHED: Curves = {job.model: job.curve for job in preset_jobs("imagenet", len(MODELS))}


@pytest.mark.parametrize("shape", shapes_of(PUBLISHED))
@pytest.mark.parametrize("spread", [0.05, 0.2])
def test_curves_are_found_in_one_growth(shape: str, spread: float) -> None:
    found = profile_of(shape, shapes_of(PUBLISHED)[shape], spread, ScaleStrategy.ADAPTIVE, seed=2)
    # A knee between two scales that are measured cannot be seen; noise hides it even from the scales beside it.
    assert found.mean_error <= (0.07 if "knee" in shape and spread > 0.1 else 0.05)
    assert found.growths == 1
    assert found.visited[0] == 64
    assert found.stalled_node_seconds < found.node_seconds


def test_a_tenth_of_what_every_scale_costs() -> None:
    curve = curve_with_knee(1000.0, 6, 24)
    some = profile_of("knee", curve, 0.05, ScaleStrategy.ADAPTIVE, seed=0)
    every = profile_of("knee", curve, 0.05, ScaleStrategy.EVERY, seed=0)
    assert len(every.visited) == 24
    assert some.node_seconds < 0.25 * every.node_seconds
    assert every.growths == some.growths == 1


def test_fleet_measures_the_low_end_and_extrapolates() -> None:
    found = profile_of("DenseNet", PUBLISHED["DenseNet"], 0.05, ScaleStrategy.FLEET, seed=0)
    assert found.visited == (2, 1)
    assert found.mean_error < 0.2
