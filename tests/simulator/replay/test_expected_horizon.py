"""The policy `expected` in a replay: T_fwd from how often jobs change."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from malletrain.allocator.forward_time import ForwardPolicy
from malletrain.scavenger.generate import generate
from malletrain.scavenger.idle_trace import window
from malletrain.scavenger.trace_files import read_trace
from malletrain.simulator.replay.baselines import outcome_of
from malletrain.simulator.replay.evaluation import Scenario
from malletrain.simulator.replay.fast_engine import run_replay
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.replay.presets import preset_jobs
from malletrain.simulator.services.engine import run_services_replay
from tests.support.shared import shared_path

HOUR_S = 3600.0
EXPECTED = ReplayOptions(duration_s=2 * HOUR_S, forward_policy=ForwardPolicy.EXPECTED)


@pytest.fixture(scope="module")
def drawn() -> Scenario:
    return Scenario.of(generate(60, 2 * HOUR_S, 0.4, random.Random(5)), 2 * HOUR_S)


def test_jobs_train_where_a_constant_below_their_stall_trains_nothing(drawn: Scenario) -> None:
    jobs = [job.with_costs(4.0) for job in preset_jobs("hpo", 30)]
    constant = replace(EXPECTED, forward_policy=ForwardPolicy.CONSTANT, forward_s=60.0)
    assert outcome_of(run_replay(drawn.events, drawn.nodes, jobs, constant)) == 0.0
    assert outcome_of(run_replay(drawn.events, drawn.nodes, jobs, replace(constant, forward_s=240.0))) > 0.0
    assert outcome_of(run_replay(drawn.events, drawn.nodes, jobs, replace(EXPECTED, forward_s=60.0))) > 0.0


def test_both_engines_agree(drawn: Scenario) -> None:
    jobs = preset_jobs("imagenet", 30)
    fast = outcome_of(run_replay(drawn.events, drawn.nodes, jobs, EXPECTED))
    assert outcome_of(run_services_replay(drawn.events, drawn.nodes, jobs, EXPECTED)) == pytest.approx(fast, rel=0.03)


@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_it_is_as_good_as_the_best_constant_for_jobs_of_one_kind(factor: float) -> None:
    trace = read_trace(shared_path("traces/summit-2021-02-week1.csv.gz"))
    scenario = Scenario.of(window(trace, 4 * 24 * HOUR_S, 12 * HOUR_S, 1024), 12 * HOUR_S)
    jobs = [job.with_costs(factor) for job in preset_jobs("hpo")]
    options = replace(EXPECTED, duration_s=scenario.duration_s)
    constants = [replace(options, forward_policy=ForwardPolicy.CONSTANT, forward_s=value) for value in (120.0, 240.0)]
    best = max(outcome_of(run_replay(scenario.events, scenario.nodes, jobs, each)) for each in constants)
    assert outcome_of(run_replay(scenario.events, scenario.nodes, jobs, options)) > 0.995 * best
