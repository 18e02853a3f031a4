"""Fleets in plans: members whose rates are measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from malletrain.allocator.fleets.members import LateRate
from malletrain.fleet.problem import FleetPlanner
from tests.allocator.fleet_plans import RATES, TERMS, after, curve, member, plan_input, planned


def test_rates_that_are_not_known_are_measured_on_one_gpu_each() -> None:
    terms = replace(TERMS, planner=FleetPlanner.AUTO, max_nodes=1)
    jobs = [member(name, terms=terms) for name in RATES]
    unknown = {job.id: curve(1.0, known=False, sure=()) for job in jobs}
    found = replace(plan_input(jobs, ("n1",)), curves=unknown)
    _, first, parts = planned(found)
    assert [len(parts[name]) for name in RATES] == [1, 1, 0, 0]
    assert first["f1"].reason == (
        "rates are measured: 4 of 4 members on 1 GPU; the rates of 4 of 4 members are not known yet"
    )
    measured = {**unknown, "j1": curve(100.0, sure=(1,)), "j2": curve(50.0, sure=(1,))}
    _, _, turns = planned(replace(after(found, parts), curves=measured), first["f1"])
    assert [len(turns[name]) for name in RATES] == [0, 0, 1, 1], "those that are measured make room for the others"


def test_members_that_are_profiled_are_measured_on_more_gpus_side_by_side() -> None:
    terms = replace(TERMS, planner=FleetPlanner.MAKESPAN, max_nodes=2)
    jobs = [member(name, terms=terms, profiled=True) for name in ("j1", "j2")]
    found = plan_input(jobs, ("n1", "n2"))
    levels = []
    sure: tuple[int, ...] = (1,)
    before = None
    for _ in range(2):
        found = replace(found, curves={job.id: curve(RATES[job.id], sure=sure) for job in jobs})
        _, decisions, parts = planned(found, before)
        before = decisions["f1"]
        levels.append([len(parts[job.id]) for job in jobs])
        found = after(found, parts)
        sure = (*sure, len(parts["j1"]))
    assert levels == [[2, 2], [4, 0]]
    assert "2 of 2 members on 4 GPUs" in before.reason if before else False


def test_a_member_that_never_reports_does_not_keep_the_others_on_one_gpu_each() -> None:
    terms = replace(TERMS, planner=FleetPlanner.AUTO, max_nodes=4)
    jobs = [member(name, terms=terms, profiled=True) for name in ("j1", "j2", "j3")]
    curves = {job.id: curve(RATES[job.id], known=job.id != "j3", sure=(1,) if job.id != "j3" else ()) for job in jobs}
    found = replace(plan_input(jobs), curves=curves)
    _, first, parts = planned(found)
    assert [len(parts[job.id]) for job in jobs] == [1, 1, 1]
    assert first["f1"].late_rates == ()
    late = {"j3": LateRate(1, 600.0)}
    _, second, measuring = planned(replace(after(found, parts), late_rates=late), first["f1"])
    assert [len(measuring[job.id]) for job in jobs] == [2, 2, 1], "the others are measured on more"
    everywhere = {**curves, "j1": curve(100.0), "j2": curve(55.0)}
    done = replace(after(found, measuring), late_rates=late, curves=everywhere)
    _, third, parts = planned(done, second["f1"])
    assert sum(map(len, parts.values())) == 8, "nobody waits for it any more"
    assert third["f1"].compared_gpus == 8, "planners are compared by what is assumed of it"
    assert third["f1"].reason.endswith("rates are assumed that did not come in time: j3 on 1 GPU in 600 s")
    assert third["f1"].late_rates == (("j3", LateRate(1, 600.0)),)
    known = replace(done, curves={**everywhere, "j3": curve(95.0, sure=(1,))})
    _, fourth, _ = planned(known, third["f1"])
    assert "did not come" not in fourth["f1"].reason, "its rate has come later"
    assert third["f1"].reason.count("measured") <= 1, "what was said in an earlier plan is not repeated"


@pytest.mark.parametrize("share", [{"min_nodes": 2}, {"permitted_nodes": (2, 4)}])
def test_a_member_is_measured_on_the_fewest_gpus_that_it_may_have(share: Mapping[str, Any]) -> None:
    terms = replace(TERMS, planner=FleetPlanner.MAKESPAN, max_nodes=2)
    job = replace(member("j1", terms=terms, profiled=True), **share)
    levels: list[int] = []
    for sure in ((), (2,), (2, 4)):
        found = replace(plan_input([job], ("n1", "n2")), curves={"j1": curve(100.0, known=bool(sure), sure=sure)})
        _, decisions, parts = planned(found)
        levels.append(len(parts["j1"]))
        assert ("measured" in decisions["f1"].reason) == (sure != (2, 4))
    assert levels[:2] == [2, 4]


def test_nobody_waits_for_a_member_that_needs_more_gpus_than_there_are() -> None:
    terms = replace(TERMS, planner=FleetPlanner.AUTO, max_nodes=2)
    jobs = [member("j1", terms=terms), replace(member("j2", terms=terms), min_nodes=8)]
    found = plan_input(jobs, ("n1", "n2"))
    found = replace(found, curves={**found.curves, "j2": curve(1.0, known=False, sure=())})
    _, decisions, parts = planned(found)
    assert decisions["f1"].compared_gpus == 4
    assert len(parts["j1"]) > 1
