"""A deadline alone leads to plans: when it passes, and now and then before, without any other event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.allocator.machine.cluster_cache import CachedJob
from malletrain.allocator.machine.options import MachineOptions
from malletrain.allocator.machine.plan_trigger import PlanTrigger
from malletrain.allocator.machine.stimuli import ApplyPlan, BeginPlan
from malletrain.allocator.problem.planner import PlannedValue
from malletrain.model.job_value import Deadline, SpeedValue
from tests.allocator.test_machine import PLANNER, STAYS, Driver
from tests.allocator.test_plan_trigger import applied
from tests.allocator.test_planner import cache
from tests.support.builders import cached_job

ANSWERS = 1e9
"""The driver's Unix time, less its own."""


def due_in(seconds: float, *, submitted: float, target: int = 1_000_000, after: bool = True) -> PlannedValue:
    return PlannedValue(SpeedValue(deadline=Deadline(seconds, after, urgency=8.0)), submitted, target)


def with_value(name: str, value: PlannedValue, most: int = 4, weight: float = 1.0) -> CachedJob:
    job = cached_job(name)
    return replace(job, plannable=replace(job.plannable, value=value, max_nodes=most, weight=weight))


def test_when_a_deadline_is() -> None:
    assert due_in(600.0, submitted=50.0).due_at == 650.0
    assert due_in(600.0, submitted=50.0, after=False).due_at == 600.0
    assert due_in(600.0, submitted=50.0, target=0).due_at is None, "without a target it has no meaning"
    assert PlannedValue().due_at is None


def test_each_plan_knows_how_much_is_left_of_what_has_a_deadline() -> None:
    driver = Driver()
    driver.peers = STAYS
    driver.know(with_value("a", due_in(600.0, submitted=0.0)))
    assert [driver.asks(0.1, f"n{number}") for number in range(4, 7)] == [True, True, True]


def test_a_plan_follows_each_time_half_of_the_time_is_over_and_when_it_is() -> None:
    found, trigger = cache(), PlanTrigger(60.0)
    found.update_jobs([with_value("a", due_in(1000.0, submitted=0.0))])
    applied(trigger, found, 0.0)
    now, reasons = 0.0, []
    while (wait := trigger.wait_seconds(found, now, now)) is not None:
        now += wait
        reasons.append((now, trigger.reason(found, now, now)))
        applied(trigger, found, now)
    assert reasons == [
        *((time, "deadlines are nearer") for time in (500.0, 750.0, 875.0, 937.5, 997.5)),
        (1000.0, "deadlines passed: a"),
    ]


def test_without_plans_for_changed_curves_only_its_passing_counts() -> None:
    found, trigger = cache(), PlanTrigger(0.0)
    found.update_jobs([with_value("a", due_in(1000.0, submitted=0.0))])
    applied(trigger, found, 0.0)
    assert trigger.wait_seconds(found, 100.0, 100.0) == 900.0
    assert trigger.reason(found, 999.9, 999.9) == ""
    assert trigger.reason(found, 1000.0, 1000.0) == "deadlines passed: a"
    applied(trigger, found, 1000.0)
    assert trigger.wait_seconds(found, 1000.0, 1000.0) is None


def test_a_refused_plan_for_a_deadline_is_made_again() -> None:
    found, trigger = cache(), PlanTrigger(60.0)
    found.update_jobs([with_value("a", due_in(1000.0, submitted=0.0))])
    applied(trigger, found, 0.0)
    trigger.begin()
    trigger.note_refused()
    assert trigger.wait_seconds(found, 500.0, 500.0) == 0.1
    assert trigger.reason(found, 500.1, 500.1) == "deadlines are nearer"


@pytest.mark.parametrize("replan", [0.0, 60.0])
def test_the_machine_takes_nodes_from_a_job_whose_time_is_over(replan: float) -> None:
    driver = Driver(MachineOptions(PLANNER, coalesce_seconds=0.1, replan_seconds=replan))
    begun = ANSWERS + driver.now
    # By itself `urgent` counts half as much as `other`; the samples that it needs for its deadline count eight times.
    value = due_in(600.0, submitted=begun)
    driver.know(with_value("urgent", value, weight=0.5), with_value("other", PlannedValue()))
    sizes = []
    while not sizes or not _reasons(driver)[-1].startswith("deadlines passed"):
        plan = driver.until(ApplyPlan)
        assert isinstance(plan, ApplyPlan)
        sizes.append({part.job_id: len(part.nodes) for part in plan.plan.assignments})
        driver.answer(plan)
        assert len(sizes) < 20
    assert _reasons(driver)[-1] == "deadlines passed: urgent"
    assert len(sizes) == (6 if replan else 2)
    assert driver.now == pytest.approx(begun - ANSWERS + 600.0, abs=1.0)
    assert (sizes[0], sizes[-1]) == ({"urgent": 3, "other": 0}, {"urgent": 0, "other": 3})


def _reasons(driver: Driver) -> list[str]:
    return [effect.reason for effect in driver.effects if isinstance(effect, BeginPlan)]
