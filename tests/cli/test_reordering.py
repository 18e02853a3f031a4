"""Which nice values put BBSched's selection first, and how they are taken back: the pure part."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pytest

from malletrain.cli.simulate.advice import is_reserved
from malletrain.cli.simulate.reordering import (
    ChangeKind,
    Reordering,
    ReorderLimits,
    StandingChange,
    natural_priorities,
    reorder,
    take_back,
)
from malletrain.scavenger.sources.base import SourceError
from malletrain.scavenger.sources.schedulers.slurm_priorities import (
    MAX_NICE,
    JobPriority,
    is_updatable,
    parse_priorities,
)

AT = "2026-11-28T10:00:00"
WINDOW = ("1", "2", "3", "4")
LIMITS = ReorderLimits()


def queue(**changed: JobPriority) -> dict[str, JobPriority]:
    """Four jobs, the first with the highest priority."""
    found = {job: JobPriority(job, "PD", 1000 - 100 * int(job), 0, AT) for job in WINDOW}
    return found | {job.job: job for job in changed.values()}


def reordered(
    window: Sequence[str],
    chosen: Collection[str],
    now: Mapping[str, JobPriority],
    standing: Mapping[str, StandingChange],
    passes: Mapping[tuple[str, str], int],
    limits: ReorderLimits,
    startable: Collection[str] = WINDOW,
) -> Reordering:
    return reorder(window, chosen, now, standing, passes, limits, startable=startable)


def test_selected_jobs_are_put_before_those_passed_over_and_keep_their_order() -> None:
    found = reordered(WINDOW, {"2", "4"}, queue(), {}, {}, LIMITS)
    assert [(one.job, one.nice_after, one.priority_wanted) for one in found.changes] == [
        ("2", -103, 903),
        ("4", -302, 902),
    ]
    assert found.passed_over == (("1", AT), ("3", AT))
    assert found.notes == ()


def test_nothing_changes_where_the_selected_jobs_are_first() -> None:
    assert reordered(WINDOW, {"1", "2"}, queue(), {}, {}, LIMITS).changes == ()
    assert reordered(WINDOW, (), queue(), {}, {}, LIMITS).changes == ()


def test_a_job_of_equal_priority_and_later_number_is_behind() -> None:
    equal = {job: JobPriority(job, "PD", 1, 0, AT) for job in ("9", "10")}
    assert [one.job for one in reordered(("9", "10"), {"10"}, equal, {}, {}, LIMITS).changes] == ["10"]
    assert reordered(("9", "10"), {"9"}, equal, {}, {}, LIMITS).changes == ()


def test_a_second_round_changes_nothing_and_a_job_no_longer_chosen_gets_its_value_back() -> None:
    raised = JobPriority("2", "PD", 903, -103, AT)
    standing = {"2": StandingChange("2", AT, 0, -103)}
    assert natural_priorities(queue(raised=raised), standing)["2"] == 800
    again = reordered(WINDOW, {"2"}, queue(raised=raised), standing, {}, LIMITS)
    assert (again.changes, again.passed_over) == ((), (("1", AT),))
    other = reordered(WINDOW, {"1"}, queue(raised=raised), standing, {}, LIMITS)
    assert [(one.kind, one.job, one.nice_after) for one in other.changes] == [(ChangeKind.RESTORE, "2", 0)]


def test_who_was_passed_over_counts_also_after_it_left_the_window() -> None:
    raised = JobPriority("2", "PD", 903, -103, AT)
    standing = {"2": StandingChange("2", AT, 0, -103)}
    later = reordered(WINDOW[1:], {"2"}, queue(raised=raised), standing, {("1", AT): 1}, LIMITS)
    assert (later.changes, later.passed_over) == ((), (("1", AT),))
    starved = reordered(WINDOW[1:], {"2"}, queue(raised=raised), standing, {("1", AT): 50}, LIMITS)
    assert [(one.kind, one.job) for one in starved.changes] == [(ChangeKind.RESTORE, "2")]


def test_who_waits_for_something_else_is_not_passed_over_and_holds_nobody_back() -> None:
    starved = {("1", AT): 50}
    found = reordered(WINDOW[1:], {"3"}, queue(), {}, starved, LIMITS, startable=WINDOW[1:])
    assert [one.job for one in found.changes] == ["3"]
    assert (found.passed_over, found.notes) == ((("2", AT),), ())
    again = reordered(WINDOW[1:], {"3"}, queue(), {}, starved, LIMITS)
    assert again.notes == ("job 3 stays behind job 1, which has been passed over in 50 rounds",)


@pytest.mark.parametrize(
    ("reason", "is_kept"),
    [
        ("ReqNodeNotAvail, May be reserved for other job", True),
        ("ReqNodeNotAvail,_May_be_reserved_for_other_job", True),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", True),
        ("ReqNodeNotAvail, UnavailableNodes:n003", False),
        ("ReqNodeNotAvail, Reserved for maintenance", False),
        ("Dependency", False),
        ("BeginTime", False),
        ("JobHeldUser", False),
        ("QOSMaxJobsPerUserLimit", False),
    ],
)
def test_of_which_jobs_slurm_keeps_the_nodes_for_others(reason: str, is_kept: bool) -> None:
    assert is_reserved(reason) is is_kept


@pytest.mark.parametrize("startable", [WINDOW, ("1",)])
def test_a_raised_job_that_left_the_window_gets_its_value_back(startable: Sequence[str]) -> None:
    raised = JobPriority("2", "PD", 903, -103, AT)
    standing = {"2": StandingChange("2", AT, 0, -103)}
    found = reordered(("1",), {"1"}, queue(raised=raised), standing, {}, LIMITS, startable)
    assert [(one.kind, one.job, one.nice_after) for one in found.changes] == [(ChangeKind.RESTORE, "2", 0)]
    by_others = queue(raised=JobPriority("2", "PD", 803, -3, AT))
    assert reordered(("1",), {"1"}, by_others, standing, {}, LIMITS, startable).changes == ()


def test_nobody_is_put_before_a_job_that_was_passed_over_too_often() -> None:
    found = reordered(WINDOW, {"2", "4"}, queue(), {}, {("3", AT): 50}, LIMITS)
    assert [one.job for one in found.changes] == ["2"]
    assert found.notes == ("job 4 stays behind job 3, which has been passed over in 50 rounds",)
    same_number = reordered(WINDOW, {"2", "4"}, queue(), {}, {("3", "2026-11-01T00:00:00"): 50}, LIMITS)
    assert [one.job for one in same_number.changes] == ["2", "4"]


def test_changes_of_a_round_are_bounded() -> None:
    found = reordered(WINDOW, {"2", "3", "4"}, queue(), {}, {}, ReorderLimits(changes=1))
    assert [one.job for one in found.changes] == ["2"]
    assert found.notes == ("2 further changes are left to the next round",)


def test_what_slurm_does_not_take_is_told() -> None:
    high = JobPriority("1", "PD", 4_294_967_295, 0, AT)
    found = reordered(WINDOW, {"2"}, queue(high=high), {}, {}, LIMITS)
    assert found.changes == ()
    assert "can't be raised so far" in found.notes[0]
    assert MAX_NICE < 4_294_967_295


def test_a_priority_below_1_is_shown_as_1() -> None:
    lowered = JobPriority("4", "PD", 1, 7, AT)
    found = reordered(WINDOW, {"4"}, queue(lowered=lowered), {}, {}, LIMITS)
    assert [(one.nice_after, one.priority_wanted) for one in found.changes] == [(-902, 902)]


def test_taking_back_leaves_alone_what_others_changed_and_who_is_gone() -> None:
    standing = {
        "2": StandingChange("2", AT, 0, -103),
        "3": StandingChange("3", AT, 5, -203),
        "77": StandingChange("77", AT, 0, -1),
    }
    now = queue(two=JobPriority("2", "PD", 900, -50, AT), three=JobPriority("3", "PD", 903, -203, AT))
    found = take_back(now, standing)
    assert [(one.job, one.nice_before, one.nice_after) for one in found.changes] == [("3", -203, 5)]
    assert found.notes == (
        "1 jobs that were raised wait no longer",
        "job 2 has a nice value of -50 that is not ours (-103): it is left alone",
    )


@pytest.mark.parametrize(
    ("job", "may"),
    [
        ("17", True),
        ("17_3", True),
        ("17+1", False),
        ("17_[1-4]", False),
        ("17;id", False),
        ("17 Nice=0", False),
        ("", False),
    ],
)
def test_which_identifiers_are_handed_to_scontrol(job: str, may: bool) -> None:
    assert is_updatable(job) is may


def test_priorities_as_squeue_prints_them() -> None:
    found = parse_priorities(f"17_3|PD|4294901750|-20|{AT}\n8|R|1|0|{AT}\n")
    assert found["17_3"] == JobPriority("17_3", "PD", 4_294_901_750, -20, AT)
    for text in (f"17|PD|1|0|{AT}", f"17|PD|x|0|{AT}\n", "17|PD|1|0\n", f"17;id|PD|1|0|{AT}\n"):
        with pytest.raises(SourceError, match="squeue"):
            parse_priorities(text)
