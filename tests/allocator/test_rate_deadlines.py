"""Members of fleets whose rates do not come."""

from __future__ import annotations

from dataclasses import replace

from malletrain.allocator.fleets.members import LateRate
from malletrain.allocator.machine.rate_deadlines import RateDeadlines
from malletrain.allocator.problem.planner import PlanInput
from tests.allocator.fleet_plans import curve, member, plan_input

LATE = {"j1": LateRate(1, 600.0)}


def present(*gpus: str, known: bool = False, sure: tuple[int, ...] = (), profiled: bool = False) -> PlanInput:
    found = plan_input([member("j1", *gpus, profiled=profiled)])
    return replace(found, curves={"j1": curve(50.0, known=known, sure=sure)})


def test_a_member_that_does_not_report_is_late() -> None:
    deadlines = RateDeadlines(600.0, {})
    assert deadlines.look(present("n1#0"), 1000.0) == {}
    assert deadlines.next_seconds() == 600.0
    assert deadlines.look(present("n1#0"), 1599.0) == {}
    assert deadlines.next_seconds() == 1.0
    assert deadlines.look(present("n1#0"), 1600.0) == LATE
    assert deadlines.next_seconds() is None
    assert deadlines.look(present("n1#0", known=True, sure=(1,)), 1700.0) == LATE, "it is not measured again"


def test_only_the_time_counts_in_which_it_has_gpus() -> None:
    deadlines = RateDeadlines(600.0, {})
    deadlines.look(present("n1#0"), 0.0)
    deadlines.look(present(), 500.0)
    assert deadlines.next_seconds() is None, "it waits for its turn"
    resting = PlanInput(resting={"j1": "f1"})
    assert deadlines.look(resting, 5000.0) == {}, "it waits after a failure"
    deadlines.look(present("n2#1"), 9000.0)
    assert deadlines.next_seconds() == 100.0
    assert deadlines.look(present("n2#1"), 9100.0) == LATE


def test_each_number_of_gpus_has_its_time() -> None:
    deadlines = RateDeadlines(600.0, {})
    deadlines.look(present("n1#0"), 0.0)
    two = present("n1#0", "n1#1", known=True, sure=(1,), profiled=True)
    deadlines.look(two, 500.0)
    assert deadlines.next_seconds() == 600.0
    assert deadlines.look(two, 1100.0) == {"j1": LateRate(2, 600.0)}


def test_nobody_is_late_whose_rate_is_not_to_be_measured() -> None:
    deadlines = RateDeadlines(600.0, {})
    for found in (
        present("n1#0", known=True, sure=(1,), profiled=True),
        present("n1#0", "n1#1", known=True, sure=(1,)),
        present("n1#0", "n1#1", "n2#0", known=True, sure=(1,), profiled=True),
    ):
        deadlines.look(found, 0.0)
        assert deadlines.next_seconds() is None
        assert deadlines.look(found, 1e6) == {}


def test_those_of_the_newest_plan_stay_late_and_those_that_have_ended_are_forgotten() -> None:
    deadlines = RateDeadlines(600.0, LATE)
    unknown = replace(present("n1#0"), curves={})
    assert deadlines.look(unknown, 0.0) == LATE, "also before the Profiler has said anything"
    assert deadlines.look(PlanInput(resting={"j1": "f1"}), 1.0) == LATE
    assert deadlines.look(PlanInput(), 2.0) == {}
    assert deadlines.look(present("n1#0"), 3.0) == {}
