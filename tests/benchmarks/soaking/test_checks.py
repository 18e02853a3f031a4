"""Each check holds of a good run, and finds what violates it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.soaking import checks
from benchmarks.soaking.checks import CHECKS, check
from benchmarks.soaking.observations import FinalJob, JobSeen, JournalRow, Observations, Scan, Sizes, Use

COMPLETED, RUNNING, QUEUED = "JOB_STATE_COMPLETED", "JOB_STATE_RUNNING", "JOB_STATE_QUEUED"
RELEASED = "JOB_REASON_NODE_RELEASED"
_MIB = 2**20


def row(sequence: int, job: str, before: str, after: str, *nodes: str, reason: str = "", text: str = "") -> JournalRow:
    at = 10.0 + sequence
    return JournalRow(at, sequence, job, before, after, frozenset(nodes), reason, text, since=at - 0.5, unix_s=at)


def scan(begin: float, *processes: tuple[str, str, int]) -> Scan:
    return Scan(begin, begin + 0.1, frozenset(processes))


def good() -> Observations:
    """Two jobs, one after the other on the same node."""
    seen = Observations(submitted={"first": 1.0, "second": 2.0})
    seen.last_rows = [
        row(1, "j1", QUEUED, QUEUED),
        row(2, "j1", QUEUED, RUNNING, "a", "b"),
        row(3, "j1", RUNNING, RUNNING, "b", reason="JOB_REASON_PREEMPTED"),
        row(4, "j1", RUNNING, RUNNING, "b", reason=RELEASED, text="released: no process is left on a"),
        row(5, "j2", QUEUED, RUNNING, "a"),
        row(6, "j1", RUNNING, COMPLETED),
        row(7, "j2", RUNNING, COMPLETED),
    ]
    seen.rows = list(seen.last_rows)
    seen.jobs = [
        JobSeen(12.0, "j1", RUNNING, frozenset("ab")),
        JobSeen(13.0, "j1", RUNNING, frozenset("b")),
        JobSeen(15.0, "j2", RUNNING, frozenset("a")),
        JobSeen(45.0, "j1", COMPLETED, frozenset()),
    ]
    seen.commands = ["12.1 start j1 a b", "13.1 release j1 a", "15.1 start j2 a", "16.0 set j1 b c", "16.9 stop j1 b c"]
    seen.scans = [
        scan(12.5, ("j1", "a", 1), ("j1", "b", 2)),
        scan(14.5, ("j1", "b", 2)),
        scan(40.0, ("j1", "b", 2), ("j2", "a", 3)),
    ]
    seen.uses = [
        Use(at, "monitor", 7, size * _MIB, 20) for at, size in ((0.0, 60), (16.0, 100), (60.0, 110), (120.0, 120))
    ]
    seen.sizes = [Sizes(1.0, {"monitor.sqlite": 10_000}), Sizes(2.0, {"monitor.sqlite": 20_000})]
    seen.gauges = {"malletrain_monitor_messages_waiting": 0.0}
    seen.ends = ["monitor:-9"]
    seen.final_jobs = [
        FinalJob("j1", "first", COMPLETED, 640, 640, 640, 640, 0, 1, 5.0, 640, 1),
        FinalJob("j2", "second", COMPLETED, 320, 320, 320, 320, 0, 0, 2.0, 320),
    ]
    return seen


def lose_journal_rows(seen: Observations) -> None:
    del seen.last_rows[2]


def change_a_journal_row(seen: Observations) -> None:
    seen.last_rows[4] = replace(seen.last_rows[4], nodes=frozenset("c"))


def give_a_node_twice(seen: Observations) -> None:
    seen.last_rows[4] = replace(seen.last_rows[4], nodes=frozenset("b"))


def start_on_a_node_in_use(seen: Observations) -> None:
    seen.commands[2] = "13.0 start j2 a"


def grow_onto_a_node_in_use(seen: Observations) -> None:
    seen.commands[3] = "16.0 set j1 a b"


def run_beside_another_job(seen: Observations) -> None:
    seen.scans.append(scan(16.0, ("j1", "b", 2), ("j2", "b", 9)))


def stay_after_the_release(seen: Observations) -> None:
    seen.scans.append(scan(14.6, ("j1", "a", 1)))


def stay_where_the_job_is_not(seen: Observations) -> None:
    seen.scans += [scan(at, ("j2", "z", 4)) for at in (50.0, 60.0, 71.0)]


def lose_a_job(seen: Observations) -> None:
    seen.submitted["third"] = 3.0


def make_a_job_twice(seen: Observations) -> None:
    seen.final_jobs.append(replace(seen.final_jobs[0], job_id="j3"))


def leave_a_job_waiting(seen: Observations) -> None:
    seen.final_jobs[1] = replace(seen.final_jobs[1], state="JOB_STATE_WAITING")


def miscount(seen: Observations) -> None:
    seen.final_jobs[0] = replace(seen.final_jobs[0], samples=608)


def miscount_in_monitor(seen: Observations) -> None:
    seen.final_jobs[0] = replace(seen.final_jobs[0], monitor_samples=None)


def train_too_little(seen: Observations) -> None:
    seen.final_jobs[0] = replace(seen.final_jobs[0], trained=600)


def charge_too_much(seen: Observations) -> None:
    seen.final_jobs[0] = replace(seen.final_jobs[0], used_node_s=9.0)


def account_samples_twice(seen: Observations) -> None:
    seen.final_jobs[0] = replace(seen.final_jobs[0], used_samples=1280)


def account_for_no_preemption(seen: Observations) -> None:
    seen.final_jobs[0] = replace(seen.final_jobs[0], used_preemptions=0)


def jump(seen: Observations) -> None:
    seen.last_rows[4] = replace(seen.last_rows[5], before=QUEUED)


def end_otherwise(seen: Observations) -> None:
    seen.last_rows.pop()


def leave_a_message_waiting(seen: Observations) -> None:
    seen.gauges["malletrain_monitor_messages_waiting"] = 3.0


def leave_a_process(seen: Observations) -> None:
    seen.left_processes.append("python trainer.py")


def stay_silent(seen: Observations) -> None:
    seen.silent_services.append("monitor")


def end_by_itself(seen: Observations) -> None:
    seen.ends += ["monitor:-9", "profiler:1"]


def log_a_traceback(seen: Observations) -> None:
    seen.defects.append("logs/monitor.log: ValueError: no")


def grow(seen: Observations) -> None:
    seen.uses.append(Use(130.0, "monitor", 7, 160 * _MIB, 20))


def be_large(seen: Observations) -> None:
    seen.uses.append(Use(1.0, "profiler", 8, 500 * _MIB, 20))


def open_more_and_more(seen: Observations) -> None:
    seen.uses.append(Use(130.0, "monitor", 7, 120 * _MIB, 90))


def open_very_many(seen: Observations) -> None:
    seen.uses.append(Use(1.0, "profiler", 8, 100 * _MIB, 900))


def write_much(seen: Observations) -> None:
    seen.sizes.append(Sizes(3.0, {"logs/monitor.log": 100 * _MIB}))


VIOLATIONS: list[tuple[Callable[[Observations], None], checks.Check]] = [
    (give_a_node_twice, checks.no_node_in_two_jobs_of_the_journal),
    (start_on_a_node_in_use, checks.no_node_in_two_trainings),
    (grow_onto_a_node_in_use, checks.no_node_in_two_trainings),
    (run_beside_another_job, checks.no_node_with_processes_of_two_jobs),
    (stay_after_the_release, checks.nothing_on_a_node_after_its_release),
    (stay_where_the_job_is_not, checks.nothing_long_where_its_job_is_not),
    (lose_a_job, checks.every_job_is_there_once),
    (make_a_job_twice, checks.every_job_is_there_once),
    (leave_a_job_waiting, checks.every_job_is_complete),
    (miscount, checks.samples_agree),
    (miscount_in_monitor, checks.samples_agree),
    (train_too_little, checks.samples_agree),
    (charge_too_much, checks.usage_agrees),
    (account_samples_twice, checks.usage_agrees),
    (account_for_no_preemption, checks.usage_agrees),
    (jump, checks.the_journal_goes_on),
    (end_otherwise, checks.the_journal_goes_on),
    (lose_journal_rows, checks.no_row_is_lost),
    (change_a_journal_row, checks.no_row_is_lost),
    (leave_a_message_waiting, checks.queues_are_empty),
    (leave_a_process, checks.queues_are_empty),
    (stay_silent, checks.queues_are_empty),
    (end_by_itself, checks.no_service_ends_by_itself),
    (log_a_traceback, checks.no_defect_is_logged),
    (grow, checks.memory_is_bounded),
    (be_large, checks.memory_is_bounded),
    (open_more_and_more, checks.descriptors_are_bounded),
    (open_very_many, checks.descriptors_are_bounded),
    (write_much, checks.files_are_bounded),
]


def test_a_good_run_passes() -> None:
    assert check(good()) == {name: [] for name in CHECKS}


@pytest.mark.parametrize(("violate", "of"), VIOLATIONS, ids=lambda entry: entry.__name__)
def test_a_violation_is_found(violate: Callable[[Observations], None], of: checks.Check) -> None:
    seen = good()
    violate(seen)
    assert len(of(seen)) >= 1


def test_every_check_has_a_violation() -> None:
    assert {of for _, of in VIOLATIONS} == set(CHECKS.values())


def test_a_killed_training_may_be_noticed_late() -> None:
    seen = good()
    seen.commands[1] = "15.5 killed j1"
    assert checks.no_node_in_two_trainings(seen) == []


def test_a_node_that_a_job_gets_again_may_be_used_again() -> None:
    seen = good()
    seen.rows += [row(30, "j1", RUNNING, RUNNING, "a", "b")]
    seen.scans.append(scan(41.0, ("j1", "a", 11)))
    assert checks.nothing_on_a_node_after_its_release(seen) == []
