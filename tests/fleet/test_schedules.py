from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from malletrain.fleet.baselines import list_schedule, longest_first, rounds, sequential
from malletrain.fleet.choose import SIMULATED, choose, simulate_planner
from malletrain.fleet.lifecycle import FleetRun, fleet_global
from malletrain.fleet.local import fleet_local
from malletrain.fleet.lower_bound import above_bound, lower_bound
from malletrain.fleet.makespan import Replanning, makespan
from malletrain.fleet.problem import BeyondPeak, FleetPlanner, FleetProblem, Pace
from malletrain.fleet.rates import rate_table
from tests.fleet.problems import BY_HAND, problems
from tests.support.highs import reference_solver


def all_runs(problem: FleetProblem) -> dict[str, FleetRun]:
    order = range(len(problem.models))
    longest = longest_first(dict(enumerate(problem.samples())), rate_table(problem))
    return {
        "fleet": fleet_global(problem),
        "fleet-local": fleet_local(problem),
        "makespan": makespan(problem),
        "longest first": list_schedule(problem, longest),
        "in order": list_schedule(problem, order),
        "rounds": rounds(problem, order),
        "sequential": sequential(problem),
    }


def test_by_hand() -> None:
    found = all_runs(BY_HAND)
    seconds = {name: run.seconds for name, run in found.items() if name != "makespan"}
    assert seconds == pytest.approx(
        {
            "fleet": 50.0,
            "fleet-local": 70.0,
            "longest first": 60.0,
            "in order": 60.0,
            "rounds": 80.0,
            "sequential": 600 / 151.25 + 1200 / 90 + 600 / 30,
        }
    )
    first, second = found["fleet"].flotillas
    assert (first.members, first.gpus, first.completed) == ((0, 1), ((2,), (0, 1)), (0,))
    assert (first.start_s, first.end_s, first.score) == (0.0, pytest.approx(10.0), pytest.approx(1.5))
    assert (second.members, second.gpus, second.completed) == ((1, 2), ((2,), (0, 1)), (1, 2))
    assert (second.start_s, second.end_s) == (pytest.approx(15.0), pytest.approx(45.0))
    assert found["fleet"].ends_s == pytest.approx((10.0, 45.0, 45.0))
    assert lower_bound(BY_HAND) == pytest.approx(110 / 3)


def test_one_pace_waits_for_the_slowest_and_their_own_does_not() -> None:
    two = replace(BY_HAND, models=BY_HAND.models[1:], gpus=2, active_share=0.0, checkpoint_seconds=0.0)
    # b on one GPU needs 40 s alone; at the pace of c it has half of its samples after 60 s.
    assert fleet_global(two).ends_s == pytest.approx((80.0, 60.0))
    assert fleet_global(replace(two, pace=Pace.OWN)).ends_s == pytest.approx((40.0, 60.0))


def test_members_that_are_done_wait_until_too_few_gpus_are_active() -> None:
    two = replace(BY_HAND, models=BY_HAND.models[1:], gpus=2, active_share=0.5, checkpoint_seconds=1.0)
    found = fleet_global(replace(two, pace=Pace.OWN))
    assert found.waiting_gpu_seconds == pytest.approx(20.0)
    assert [flotilla.completed for flotilla in found.flotillas] == [(0, 1)]
    assert found.seconds == pytest.approx(61.0)


def test_gpus_beyond_all_peaks_are_not_assigned() -> None:
    falling = replace(BY_HAND, models=(replace(BY_HAND.models[0], rates=(60.0, 40.0)),), gpus=4)
    found = fleet_global(falling)
    assert found.flotillas[0].gpus == ((0,),)
    assert found.unassigned_gpu_seconds == pytest.approx(3 * 10.0)
    assert sequential(falling).seconds == pytest.approx(10.0)
    allowed = replace(falling, beyond_peak=BeyondPeak.ALLOW)
    assert fleet_global(allowed).flotillas[0].gpus == ((0, 1, 2, 3),)
    assert sequential(allowed).seconds > 10.0


def test_shared_preprocessing_limits_each_member_and_unshared_all_together() -> None:
    slow = replace(BY_HAND, preprocess_rate=20.0, checkpoint_seconds=0.0)
    assert fleet_global(slow).flotillas[0].end_s == pytest.approx(600 / 20)
    # 100 samples/s are asked for: each member gets a fifth of its rate, and more when others are done.
    assert list_schedule(slow, range(3)).ends_s[0] == pytest.approx(600 / 12)
    assert list_schedule(slow, range(3)).seconds == pytest.approx(2400 / 20, rel=0.2)


@settings(max_examples=150)
@given(problem=problems())
def test_every_member_is_done_once_and_nobody_beats_the_bound(problem: FleetProblem) -> None:
    bound = lower_bound(problem)
    assert bound <= above_bound(problem) * (1 + 1e-9)
    for name, run in all_runs(problem).items():
        assert len(run.ends_s) == len(problem.models), name
        assert max(run.ends_s) <= run.seconds * (1 + 1e-9), name
        assert max(run.ends_s) >= bound * (1 - 1e-9), name
        assert all(end > 0 for end in run.ends_s), name
        completed = [member for flotilla in run.flotillas for member in flotilla.completed]
        if run.flotillas:
            assert sorted(completed) == list(range(len(problem.models))), name
        for flotilla in run.flotillas:
            held = [gpu for own in flotilla.gpus for gpu in own]
            assert len(set(held)) == len(held), name
            assert set(held) <= set(range(problem.gpus)), name
            assert name != "fleet" or flotilla.completed


@settings(max_examples=60)
@given(problem=problems(max_models=4, max_gpus=8))
def test_the_bound_is_the_optimum_of_the_linear_program(problem: FleetProblem) -> None:
    table, work = rate_table(problem), problem.samples()
    model = reference_solver()
    total = model.addVariable(lb=0.0, obj=1.0)
    spent = 0.0
    for member, row in enumerate(table.rows):
        times = [model.addVariable(lb=0.0) for _ in row]
        rates = [min(rate, problem.feed) for rate in row]
        model.addConstr(sum(rate * x for rate, x in zip(rates, times, strict=True)) >= work[member])
        model.addConstr(sum(times) <= total)
        spent = sum((gpus * x for gpus, x in enumerate(times, 1)), start=spent)
    model.addConstr(spent <= problem.gpus * total)
    model.minimize()
    assert lower_bound(problem) == pytest.approx(model.getInfo().objective_function_value, rel=1e-5)


QUICK = Replanning(stall_s=0.1)


def test_the_shortest_planner_is_chosen_and_said_why() -> None:
    found = choose(BY_HAND, QUICK)
    assert found.planner is FleetPlanner.MAKESPAN
    took = {planner: simulate_planner(BY_HAND, planner, QUICK) for planner in SIMULATED}
    # There are two flotillas: all members stand still once, for which the published algorithm has no term.
    assert [len(run.flotillas) for run in took.values()] == [2, 0, 0]
    assert found.seconds[FleetPlanner.FLEET] == took[FleetPlanner.FLEET].seconds + QUICK.stall_s
    for planner in (FleetPlanner.MAKESPAN, FleetPlanner.LIST):
        assert took[planner].seconds == found.seconds[planner]
    assert "makespan is the shortest" in found.reason
    # Changes are too dear now: makespan makes none, and trains as a list does.
    assert list(choose(BY_HAND, Replanning(stall_s=30.0)).seconds.values()) == [80.0, 60.0, 60.0]
    # With slow preprocessing only flotillas share it.
    assert choose(replace(BY_HAND, preprocess_rate=10.0), QUICK).planner is FleetPlanner.FLEET


def test_the_present_planner_stays_unless_another_gains_more_than_5_percent() -> None:
    assert choose(BY_HAND, QUICK, present=FleetPlanner.LIST).planner is FleetPlanner.MAKESPAN
    one = replace(BY_HAND, models=BY_HAND.models[:1], gpus=1, checkpoint_seconds=0.1)
    # 10.1 s against 10 s.
    assert choose(one).planner is FleetPlanner.FLEET
    assert choose(one, present=FleetPlanner.LIST).planner is FleetPlanner.LIST
    assert "not more than 5 %" in choose(one).reason


def test_a_guess_that_is_too_small_still_ends() -> None:
    few = makespan(BY_HAND, guess=lambda *_: 1.0)
    assert few.seconds >= lower_bound(BY_HAND)


def test_stalls_cost_time_and_small_gains_are_left() -> None:
    free = makespan(BY_HAND, rules=Replanning(stall_s=0.0))
    dear = makespan(BY_HAND, rules=Replanning(stall_s=1000.0))
    assert free.seconds <= dear.seconds
    assert dear.seconds < 1000.0
