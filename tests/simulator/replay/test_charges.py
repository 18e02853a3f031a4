"""Costs of joins, leaves and rescales, computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.allocator.problem.allocation_problem import CostModel
from malletrain.simulator.replay.options import Accounting, ReplayOptions, ReplayPolicy
from tests.simulator.replay.builders import STAYS, Case, idle, trainer

# The job makes 1, 2, 4, 8 samples/s on 1, 2, 3, 4 nodes; a growth takes 3 s and a shrink 2 s.
PAPER = ReplayOptions(duration_s=100.0, cost_model=CostModel.PAPER, accounting=Accounting.PAPER)
STALL = ReplayOptions(duration_s=100.0, cost_model=CostModel.STALL, commit_s=4.0)


def test_a_start_costs_nothing_in_the_paper() -> None:
    (job,) = Case(idle({"n0": [(10, STAYS)]}), (trainer(),), PAPER).run_replay().jobs
    assert (job.admitted_s, job.started_s, job.ended_s) == (10.0, 10.0, None)
    assert (job.samples, job.node_seconds) == (90.0, 90.0)
    assert (job.preemption_samples, job.rescale_samples, job.rescales) == (0.0, 0.0, 1)


def test_a_cold_start_stalls() -> None:
    (job,) = Case(idle({"n0": [(10, STAYS)]}), (trainer(),), STALL).run_replay().jobs
    assert job.samples == 90.0 - 3.0
    assert (job.preemption_samples, job.rescale_samples) == (0.0, 3.0)
    assert job.node_seconds == 90.0


def test_a_growth_costs_the_old_rate_in_the_paper_and_the_new_one_as_a_stall() -> None:
    trace = idle({"n0": [(0, STAYS)], "n1": [(50, STAYS)]})
    result = Case(trace, (trainer(),), PAPER).run_replay()
    assert result.jobs[0].samples == 50 * 1 + 50 * 2 - 3 * 1
    assert result.decisions["invested_samples"].tolist() == [0.0, 3.0]
    result = Case(trace, (trainer(),), STALL).run_replay()
    assert result.jobs[0].samples == 47 * 1 + 47 * 2
    assert result.decisions["invested_samples"].tolist() == [3.0, 6.0]


def test_a_preemption_costs_the_old_rate_in_the_paper() -> None:
    trace = idle({"n0": [(0, STAYS)], "n1": [(0, 40)], "n2": [(0, 40)]})
    result = Case(trace, (trainer(),), PAPER).run_replay()
    (job,) = result.jobs
    assert job.preemptions == 1  # once for both nodes
    assert job.preemption_samples == 2 * 4
    assert job.samples == 40 * 4 - 2 * 4 + 60 * 1
    assert result.decisions["preemption_samples"].tolist() == [0.0, 8.0]
    assert result.decisions["samples_before"].tolist() == [0.0, 160.0]
    assert result.decisions["samples"].tolist() == [0.0, 152.0]


def test_a_preemption_stalls_and_loses_what_was_done_since_the_last_commit() -> None:
    trace = idle({"n0": [(0, STAYS)], "n1": [(0, 40)], "n2": [(0, 40)]})
    (job,) = Case(trace, (trainer(),), STALL).run_replay().jobs
    lost = 4 * 1  # commits at 7, 11, .. 39: one second of work
    assert job.samples == 37 * 4 - lost + 58 * 1
    assert job.preemption_samples == lost + 2 * 1
    assert job.rescale_samples == 3 * 4  # the cold start
    (job,) = Case(trace, (trainer(),), replace(STALL, commit_s=0.0)).run_replay().jobs
    assert job.samples == 37 * 4 + 58 * 1


def test_a_preemption_during_a_stall_loses_no_work_and_does_not_end_it_sooner() -> None:
    trace = idle({"n0": [(0, STAYS)], "n1": [(0, 2)]})
    (job,) = Case(trace, (trainer(up_s=10.0),), STALL).run_replay().jobs
    assert job.samples == 90 * 1  # the start stalls until 10, the preemption would until 4
    assert job.preemption_samples == 2 * 1  # from 2 to 4
    assert job.rescale_samples == 2 * 2 + 6 * 1


def test_a_growth_during_a_stall_stalls_anew() -> None:
    trace = idle({"n0": [(0, STAYS)], "n1": [(2, STAYS)]})
    (job,) = Case(trace, (trainer(),), STALL).run_replay().jobs
    assert job.samples == 95 * 2
    assert job.rescale_samples == 2 * 1 + 3 * 2


def test_a_node_lost_and_another_gained_is_one_stall_the_longer_one() -> None:
    trace = idle({"n0": [(0, STAYS)], "n1": [(0, 43)], "n2": [(43, STAYS)]})
    result = Case(trace, (trainer(),), STALL).run_replay()
    (job,) = result.jobs
    assert job.samples == 40 * 2 + (100 - 46) * 2  # 43 is the time of a commit
    assert job.preemption_samples == 2 * 2  # the two seconds that the loss alone would have taken
    assert job.rescale_samples == 3 * 2 + 1 * 2
    assert result.decisions["invested_samples"].tolist() == [6.0, 2.0]


def test_losing_the_only_node_leaves_nothing_that_stalls_and_the_next_start_is_cold() -> None:
    trace = idle({"n0": [(0, 20), (30, STAYS)]})
    (job,) = Case(trace, (trainer(),), STALL).run_replay().jobs
    assert job.samples == 16 + 67  # started at 3, the last commit at 19
    assert job.preemption_samples == 1
    assert job.rescale_samples == 3 + 3
    assert job.node_seconds == 90.0


def test_the_allocator_may_believe_one_thing_and_the_replay_charge_another() -> None:
    trace = idle({"n0": [(0, STAYS)]})
    believed = replace(PAPER, charge=CostModel.STALL)
    assert Case(trace, (trainer(),), believed).run_replay().jobs[0].samples == 97.0
    believed = replace(STALL, charge=CostModel.PAPER)
    assert Case(trace, (trainer(),), believed).run_replay().jobs[0].samples == 100.0


def test_free_is_free() -> None:
    trace = idle({"n0": [(0, STAYS)], "n1": [(0, 41), (60, STAYS)]})
    (job,) = Case(trace, (trainer(),), replace(STALL, free=True)).run_replay().jobs
    assert job.samples == 41 * 2 + 19 * 1 + 40 * 2
    assert (job.preemption_samples, job.rescale_samples, job.preemptions) == (0.0, 0.0, 1)


@pytest.mark.parametrize(("accounting", "ended"), [(Accounting.EVENT, [20.0, 36.0]), (Accounting.PAPER, [70.0, None])])
def test_jobs_end_when_they_are_done_or_at_the_next_node_event(
    accounting: Accounting, ended: list[float | None]
) -> None:
    trace = idle({"n0": [(0, STAYS)], "n1": [(70, STAYS)]})
    jobs = (trainer("a", samples=20.0), trainer("b", samples=16.0, submit_s=5.0))
    options = replace(PAPER, accounting=accounting, max_parallel=1)
    result = Case(trace, jobs, options).run_replay()
    assert [job.ended_s for job in result.jobs] == ended
    assert [job.admitted_s for job in result.jobs] == [0.0, ended[0]]
    assert [job.samples for job in result.jobs] == [20.0, 16.0]  # what runs past the end of a job is not counted
    times = result.decisions["time_s"].tolist()
    assert times == ([0.0, 20.0, 36.0, 70.0] if accounting is Accounting.EVENT else [0.0, 70.0])


def test_an_arrival_does_not_wait_for_a_node_event_unless_in_the_paper() -> None:
    trace = idle({"n0": [(0, STAYS)], "n1": [(0, STAYS)], "n2": [(50, 60)]})
    jobs = (trainer("a", most=1), trainer("b", most=1, submit_s=7.0))
    event = Case(trace, jobs, replace(PAPER, accounting=Accounting.EVENT)).run_replay()
    assert [job.admitted_s for job in event.jobs] == [0.0, 7.0]
    paper = Case(trace, jobs, PAPER).run_replay()
    assert [job.admitted_s for job in paper.jobs] == [0.0, 50.0]


def test_a_completion_and_a_preemption_at_one_instant_are_a_completion_first() -> None:
    trace = idle({"n0": [(0, 20)]})
    result = Case(trace, (trainer(samples=20.0),), replace(PAPER, accounting=Accounting.EVENT)).run_replay()
    assert result.jobs[0].ended_s == 20.0
    assert result.jobs[0].preemptions == 0
    paper = Case(trace, (trainer(samples=20.0),), PAPER).run_replay()
    assert paper.jobs[0].preemptions == 1
    assert paper.jobs[0].samples == 18.0


def test_a_fixed_job_is_killed_with_any_node_and_waits_for_the_next_decision() -> None:
    trace = idle({"n0": [(0, STAYS)], "n1": [(0, STAYS)], "n2": [(0, 40)], "n3": [(60, STAYS)]})
    options = replace(STALL, policy=ReplayPolicy.FIXED, fixed_nodes=2, commit_s=0.0)
    result = Case(trace, (trainer("a"), trainer("b")), options).run_replay()
    first = result.jobs[0]
    assert result.decisions["used"].tolist() == [2, 2, 2]
    assert first.samples == 97 * 2  # no job holds n2: a holds the first two nodes
    assert result.jobs[1].samples == 0.0

    trace = idle({"n0": [(0, 40)], "n1": [(0, STAYS)], "n2": [(0, STAYS)], "n3": [(60, STAYS)]})
    result = Case(trace, (trainer("a"),), options).run_replay()
    assert result.decisions["used"].tolist() == [2, 0, 2]
    assert result.jobs[0].samples == 37 * 2 + 37 * 2


def test_a_job_that_can_never_run_takes_no_nodes_under_any_policy() -> None:
    trace = idle({f"n{index}": [(0, STAYS)] for index in range(9)})
    jobs = (trainer("short curve", least=5), trainer("many", least=12, rates=[1.0] * 20), trainer("fits", most=2))
    for policy in ReplayPolicy:
        result = Case(trace, jobs, replace(STALL, policy=policy)).run_replay()
        assert [job.node_seconds for job in result.jobs] == [0.0, 0.0, 200.0], policy


def test_fixed_nodes_below_a_job_s_minimum_mean_its_minimum() -> None:
    trace = idle({f"n{index}": [(0, STAYS)] for index in range(5)})
    options = replace(STALL, policy=ReplayPolicy.FIXED, fixed_nodes=1)
    result = Case(trace, (trainer("a", least=2), trainer("b")), options).run_replay()
    assert [job.node_seconds for job in result.jobs] == [200.0, 100.0]
