"""Small cases, worked out by hand."""

from __future__ import annotations

import pytest

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.batch.engine import Overrun, simulate
from malletrain.simulator.batch.policies import policy_named
from malletrain.simulator.batch.schedule import Schedule, statistics_of
from malletrain.simulator.batch.workload import BatchJob, BatchWorkload
from tests.simulator.batch.workloads import workload

# (submit, nodes, run, estimate) on 4 nodes
CASE = workload(
    4,
    (0.0, 2, 10.0, 10.0),
    (1.0, 3, 5.0, 5.0),
    (2.0, 1, 20.0, 20.0),
    (3.0, 1, 8.0, 8.0),
    (4.0, 1, 4.0, 6.0),
)


def starts(schedule: Schedule) -> dict[int, float]:
    return {run.job.number: run.start_s for run in schedule.runs}


def nodes(schedule: Schedule) -> dict[int, list[int]]:
    return {run.job.number: [index for part in run.nodes for index in part] for run in schedule.runs}


def test_easy_by_hand() -> None:
    # second  0         10        20
    #         |         |         |
    # n0001   1111111111222224444444 4
    # n0002   111111111122222
    # n0003     33333333333333333333
    # n0004       5555  22222
    #
    # 1: job 2 needs 3 nodes and 2 are free: promised second 10, when job 1 ends; 1 node is extra then.
    # 2: job 3 would end at 22, after 10, but takes the extra node.
    # 3: job 4 would end at 11, and no extra node is left.
    # 4: job 5 will end at 10 by its estimate (it does at 8): starts.
    # 8: a node is free; job 4 would end at 16, after 10.
    # 10: job 2 starts. Job 4 is the head and is promised 15.
    schedule = simulate(CASE, policy_named("easy"))
    assert starts(schedule) == {1: 0.0, 2: 10.0, 3: 2.0, 4: 15.0, 5: 4.0}
    assert nodes(schedule) == {1: [0, 1], 2: [0, 1, 3], 3: [2], 4: [0], 5: [3]}
    assert [run.job.number for run in schedule.runs] == [1, 3, 5, 2, 4]
    assert {run.job.number: run.reserved_s for run in schedule.runs} == {1: None, 2: 10.0, 3: None, 4: 15.0, 5: None}


def test_fcfs_by_hand() -> None:
    # second  0         10        20        30
    #         |         |         |         |
    # n0001   11111111112222244444444
    # n0002   1111111111222225555
    # n0003             22222
    # n0004             33333333333333333333
    schedule = simulate(CASE, policy_named("fcfs"))
    assert starts(schedule) == {1: 0.0, 2: 10.0, 3: 10.0, 4: 15.0, 5: 15.0}
    assert nodes(schedule) == {1: [0, 1], 2: [0, 1, 2], 3: [3], 4: [0], 5: [1]}
    assert all(run.reserved_s is None for run in schedule.runs)


def test_wfp_by_hand() -> None:
    # 10: scores are (9/100)³·1 = 0.0007 of job 2, (5/5)³·4 = 4 of job 3, (1/3)³·2 = 0.07 of job 4: job 3 first.
    # 15: (14/100)³·1 = 0.003 of job 2, (6/3)³·2 = 16 of job 4: job 4 chooses its nodes first; both fit.
    case = workload(4, (0.0, 4, 10.0, 10.0), (1.0, 1, 90.0, 100.0), (5.0, 4, 5.0, 5.0), (9.0, 2, 3.0, 3.0))
    schedule = simulate(case, policy_named("wfp"))
    assert starts(schedule) == {1: 0.0, 3: 10.0, 4: 15.0, 2: 15.0}
    assert nodes(schedule) == {1: [0, 1, 2, 3], 3: [0, 1, 2, 3], 4: [0, 1], 2: [2]}
    assert starts(simulate(case, policy_named("easy"))) == {1: 0.0, 2: 10.0, 4: 10.0, 3: 100.0}


def test_wfp_backfills_around_its_head() -> None:
    # 2: 1 node is free. Job 2 (3 nodes; (1/10)³·3) is ahead of job 3 (none waited): promised 20; extra is 1.
    case = workload(4, (0.0, 3, 20.0, 20.0), (1.0, 4, 10.0, 10.0), (2.0, 1, 18.0, 18.0), (3.0, 1, 18.0, 18.0))
    # Job 3 ends at 20 as the reservation begins; job 4 would end at 21.
    assert starts(simulate(case, policy_named("wfp"))) == {1: 0.0, 2: 20.0, 3: 2.0, 4: 30.0}


def test_all_that_ends_at_the_shadow_time_counts_as_extra() -> None:
    # At 1, job 3 is promised 10; then all 4 nodes are free, two of them extra, whichever of jobs 1 and 2 ends first.
    case = workload(4, (0.0, 2, 10.0, 10.0), (0.0, 1, 10.0, 10.0), (1.0, 2, 5.0, 5.0), (2.0, 1, 50.0, 50.0))
    assert starts(simulate(case, policy_named("easy"))) == {1: 0.0, 2: 0.0, 3: 10.0, 4: 2.0}


def test_jobs_are_killed_at_their_estimate() -> None:
    schedule = simulate(workload(1, (0.0, 1, 20.0, 8.0), (0.0, 1, 5.0, 9.0)), policy_named("easy"))
    assert [(run.start_s, run.end_s, run.killed) for run in schedule.runs] == [(0.0, 8.0, True), (8.0, 13.0, False)]
    assert statistics_of(schedule).killed == 1


def test_jobs_may_outlive_their_estimate() -> None:
    # Job 1 should have ended at 5. At 6 it is expected to end at any moment, so that job 3 (1 s) has to wait.
    case = workload(3, (0.0, 2, 10.0, 5.0), (1.0, 3, 4.0, 4.0), (6.0, 1, 1.0, 1.0))
    schedule = simulate(case, policy_named("easy"), overrun=Overrun.RUN)
    assert starts(schedule) == {1: 0.0, 2: 10.0, 3: 14.0}
    assert not any(run.killed for run in schedule.runs)
    assert starts(simulate(case, policy_named("easy"))) == {1: 0.0, 2: 5.0, 3: 9.0}


def test_statistics_by_hand() -> None:
    found = statistics_of(simulate(CASE, policy_named("fcfs")))
    # Waits: 0, 9, 8, 12, 11. Slowdowns with the 10 s threshold: 1, 14/10, 28/20, 20/10, 15/10.
    assert found.jobs == 5
    assert found.makespan_s == 30.0
    assert found.utilisation == pytest.approx((2 * 10 + 3 * 5 + 20 + 8 + 4) / (4 * 30))
    assert found.mean_wait_s == pytest.approx(8.0)
    assert found.median_wait_s == 9.0
    assert found.wait_95_s == 12.0
    assert found.mean_bounded_slowdown == pytest.approx((1 + 1.4 + 1.4 + 2 + 1.5) / 5)


def test_progress_ends_with_all_jobs() -> None:
    told: list[int] = []
    simulate(CASE, policy_named("easy"), progress=told.append)
    assert told == [5]


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="policy: expected one of fcfs, easy, wfp, got 'sjf'"):
        policy_named("sjf")


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ((), "jobs: expected at least one"),
        ((BatchJob(1, 0.0, 3, 1.0, 1.0),), r"jobs\[0\].nodes: expected 1 to 2"),
        ((BatchJob(1, 0.0, 1, 0.0, 1.0),), r"jobs\[0\]: expected run_s and estimate_s above 0"),
        ((BatchJob(1, 5.0, 1, 1.0, 1.0), BatchJob(2, 4.0, 1, 1.0, 1.0)), r"jobs\[1\].submit_s: expected at least 5"),
    ],
)
def test_a_workload_that_cannot_run_is_refused(jobs: tuple[BatchJob, ...], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        BatchWorkload(jobs, 2)
