"""Replays in which Profiler learns the curves."""

from __future__ import annotations

import numpy as np
import pytest

from malletrain.model.scaling import ScalingPoint
from malletrain.profiler.machine.options import ProfilingMode
from malletrain.reproduce.malletrain.exhibits import order_cost, order_exhibit
from malletrain.reproduce.malletrain.systems import Mix, System, Trial, WorkloadKind, score
from malletrain.simulator.profiling.advisor import LearningOptions, ProfilingAdvisor
from malletrain.simulator.replay.evaluation import Scenario
from malletrain.simulator.replay.fast_engine import run_replay
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.records import ReplayResult
from tests.simulator.replay.builders import idle, trainer

LINEAR = tuple(8.0 * n for n in range(1, 13))
SATURATED = (8.0, 15.0, 20.0, 22.0, *[22.5] * 8)


def result(
    learning: LearningOptions | None, duration_s: float = 3000.0
) -> tuple[ReplayResult, ProfilingAdvisor | None]:
    """Two jobs of opposite kinds on 14 nodes that come and go a little."""
    stays = {f"n{i:02d}": [(0.0, duration_s)] for i in range(10)}
    stays |= {f"n{i:02d}": [(100.0 * i, 100.0 * i + 700.0)] for i in range(10, 14)}
    trace = idle(stays, duration_s)
    scenario = Scenario.of(trace, duration_s - 1)
    jobs = (
        trainer("a", rates=SATURATED, most=12, samples=1e9),
        trainer("b", rates=LINEAR, most=12, samples=1e9),
    )
    options = ReplayOptions(duration_s=duration_s - 1)
    advisor = ProfilingAdvisor(learning, options, 14, np.random.default_rng(0)) if learning else None
    return run_replay(scenario.events, scenario.nodes, jobs, options, advisor=advisor), advisor


def samples(found: ReplayResult) -> float:
    return sum(job.samples for job in found.jobs)


def test_with_declared_true_curves_the_result_is_that_of_the_plain_replay() -> None:
    plain, _ = result(None)
    told, _ = result(LearningOptions(mode=ProfilingMode.NEVER, learn=False, declare=lambda job: job.curve))
    assert samples(told) == pytest.approx(samples(plain))


def test_profiles_are_better_than_a_wrong_guess_and_cost_samples() -> None:
    plain, _ = result(None)
    flat = tuple(ScalingPoint(n, 10.0) for n in (1, 12))
    wrong, _ = result(LearningOptions(mode=ProfilingMode.NEVER, learn=False, declare=lambda _: flat))
    found, advisor = result(LearningOptions(mode=ProfilingMode.AUTO, batch=1))
    assert advisor is not None
    assert {run.state.value for run in advisor.state.runs.values()} == {"DONE"}
    assert all(run.node_seconds > 0 for run in advisor.state.runs.values())
    assert samples(wrong) < samples(found) < samples(plain)


@pytest.mark.parametrize("system", System)
def test_every_system_plays(system: System) -> None:
    trace = idle({f"n{i}": [(0.0, 900.0)] for i in range(12)}, 900.0)
    options = ReplayOptions(duration_s=899.0, max_parallel=3)
    found = score(Scenario.of(trace, 899.0), Trial(system, Mix(WorkloadKind.NAS, 1, 3e6, 12), options))
    again = score(Scenario.of(trace, 899.0), Trial(system, Mix(WorkloadKind.NAS, 1, 3e6, 12), options))
    assert found == again
    assert found.samples > 0
    assert (found.profiles > 0) == (system in (System.PROFILED, System.PROFILED_FAMILIES))


def test_the_inverse_order_takes_one_growth() -> None:
    assert order_cost([1, 2, 3, 4, 5], 18, 12, 5)[0] == 4
    assert order_cost([1, 5, 4, 3, 2, 1], 18, 12, 5)[0] == 1
    rows = order_exhibit(18, 12, 5).rows
    assert len(rows) == 20
