"""Every figure in the sentences of an explanation is found again by solving the problem another way."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.allocator.explanation import sentences
from malletrain.allocator.explanation.worth import PartExplainer, PlannedPart
from malletrain.allocator.problem.allocation_problem import AllocationProblem, JobDemand, ObjectiveMetric
from malletrain.allocator.problem.objective import permitted_sizes, rates, scale_values
from malletrain.allocator.problem.scale_pins import ScalePin
from malletrain.model.scaling import ScalingPoint
from tests.allocator.test_explanation import SLOW, by_trying, on_pool_of, planned
from tests.allocator.test_owner_limits import owned_problems

UNIT = "(?:weighted samples|samples|seconds of one node)"
LOSS = rf"the plan would lose (?P<loss>N) {UNIT}"
OF_JOBS = (
    r"waits on (?P<zero>N) nodes(?:, it had (?P<before>N))?",
    rf"has (?P<nodes>N) nodes?, (?:(?P<before>N) before|as before): (?P<rate>N) samples/s, "
    rf"worth (?P<gross>N) {UNIT} in (?P<seconds>N) s(?:, of which the rescale costs (?P<cost>N))?",
    r"not more: (?P<nodes>N) is the largest scale that it was submitted for",
    r"not more: its curve is known up to (?P<known>N) nodes?",
    r"not (?P<at>N): the pool has (?P<pool>N) nodes?, and (?P<next>N) is its next permitted scale",
    rf"not (?P<at>N): \w+ may have (?P<limit>N) nodes? here, and has (?P<owned>N)(?:; {LOSS})?",
    rf"not (?P<at>N): it trains no faster there, (?P<at_rate>N) samples/s; {LOSS}",
    rf"not (?P<at>N): the rescale costs (?P<at_cost>N) {UNIT}, more than (?P<at_rate>N) samples/s gain in "
    rf"(?P<seconds>N) s; {LOSS}",
    rf"not (?P<at>N): it would gain (?P<gain>N) {UNIT}, the others would lose (?P<others>N); {LOSS}",
    rf"not (?P<at>N): it would lose (?P<less>N) {UNIT}, the others would gain (?P<others_gain>N); {LOSS}",
    r"not (?P<at>N): it would be (?P<tie>just as good); ties go to fewer changes, fewer nodes, earlier jobs",
    rf"its next node: worth (?P<per_node>N) {UNIT} to the job itself"
    r"(?:; it would have got (?P<needs>N) with (?P<needed>N) samples/s there, not (?P<needs_rate>N))?",
    r"its owner's fair share counts (?P<share>N); with equal shares it would have (?:(?P<equal>N) nodes?|as many)",
)
OF_PARTS = (
    r"the pool: (?P<pool>N) nodes?, (?P<unused>N) of them given to no job; the jobs on them are worth (?P<objective>N) "
    rf"{UNIT} in the (?P<seconds>N) s that the plan looks ahead",
    rf"one free node more would be worth (?P<more>N) {UNIT}",
    rf"one node less to give would cost (?P<fewer>N) {UNIT}",
    rf"the scale of jobs with (?P<pinned>N) nodes? is pinned: without that the plan would be worth "
    rf"(?P<pin_cost>N) {UNIT} more",
)
NUMBER = r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"


def told(sentence: str, shapes: tuple[str, ...]) -> dict[str, float]:
    """The figures of a sentence by name. Its shape is known, and no figure is left over."""
    for shape in shapes:
        found = re.fullmatch(shape.replace("N)", f"{NUMBER})"), sentence)
        if found:
            known = {name: text for name, text in found.groupdict().items() if text is not None}
            return {name: 1.0 if name == "tie" else float(text.replace(",", "")) for name, text in known.items()}
    raise AssertionError(f"no shape for: {sentence}")


def largest(problem: AllocationProblem) -> float:
    return max(1.0, sum(float(abs(scale_values(job, problem).values).max()) for job in problem.jobs))


class Solved:
    """One job of a problem, from plans that are tried one by one."""

    def __init__(self, problem: AllocationProblem, index: int, part: PlannedPart) -> None:
        self.problem, self.index, self.job = problem, index, problem.jobs[index]
        self.nodes = part.count(self.job.id)
        self.optimum = by_trying(problem)
        self.values = scale_values(self.job, replace(problem, nodes=(*problem.nodes, "one more")))

    def value(self, nodes: int) -> float:
        return float(self.values.values[self.values.index(nodes)])

    def rate(self, nodes: int) -> float:
        return float(rates(self.job, [nodes])[0])

    def gross(self, nodes: int) -> float:
        """What a scale is worth if rescaling is free."""
        free = replace(self.job, scale_up_seconds=0.0, scale_down_seconds=0.0, stalls=(), boot_seconds=0.0)
        values = scale_values(free, self.problem)
        return float(values.values[values.index(nodes)])

    def forced(self, nodes: int) -> float:
        return by_trying(self.problem, lambda counts: counts[self.index] == nodes)

    def expected(self, figures: Mapping[str, float]) -> dict[str, float]:
        """The same figures, worked out from the plans that were tried."""
        job, problem, nodes = self.job, self.problem, self.nodes
        at = int(figures.get("at", figures.get("needs", nodes)))
        found: dict[str, float] = {
            "zero": 0, "nodes": nodes, "before": len(job.current_nodes), "seconds": problem.forward_seconds,
            "pool": len(problem.nodes), "known": job.curve[-1].nodes, "at": at, "needs": at, "share": job.share_weight,
            "next": min((size for size in permitted_sizes(job, len(problem.nodes) + 100) if size > nodes), default=0),
            "rate": self.rate(nodes), "at_rate": self.rate(at), "needs_rate": self.rate(at),
        }  # fmt: skip
        if {"gross", "cost"} & figures.keys():
            found |= {"gross": self.gross(nodes), "cost": self.gross(nodes) - self.value(nodes)}
        if "at_cost" in figures:
            found["at_cost"] = self.gross(at) - self.value(at)
        if "limit" in figures:
            found["limit"] = problem.owner_limits[job.owner]
        if "loss" in figures or "tie" in figures:
            loss = self.optimum - self.forced(at)
            own = self.value(at) - self.value(nodes)
            found |= {"loss": loss, "gain": own, "less": -own, "others": loss + own, "others_gain": -(loss + own)}
            found["tie"] = 1.0 + loss
        return found


@SLOW
@given(problem=owned_problems(), shares=st.lists(st.sampled_from([0.5, 1.0, 1.0, 2.0]), min_size=4, max_size=4))
def test_every_figure_that_is_told_of_a_job(problem: AllocationProblem, shares: list[float]) -> None:
    jobs = zip(problem.jobs, shares, strict=False)
    problem = replace(
        problem,
        jobs=tuple(
            replace(job, owner=job.owner or "joe", weight=job.weight * share, share_weight=share) for job, share in jobs
        ),
    )
    part = planned(problem)
    explainer, near = PartExplainer(part), 1e-8 * largest(problem)
    for index, job in enumerate(problem.jobs):
        account, solved = explainer.job(job.id), Solved(problem, index, part)
        for sentence in sentences.of_job(account, problem):
            figures = told(sentence, OF_JOBS)
            expected = solved.expected(figures)
            expected["owned"] = sum(part.count(other.id) for other in problem.jobs if other.owner == job.owner)
            for name in figures.keys() & expected.keys():
                assert figures[name] == pytest.approx(expected[name], rel=1e-3, abs=near), (name, sentence)
            for name in figures.keys() - expected.keys():
                check_by_solving(name, figures, solved, sentence)


def check_by_solving(name: str, figures: Mapping[str, float], solved: Solved, sentence: str) -> None:
    """Figures that say what would make another plan as good, or what another plan would give."""
    problem, job, near = solved.problem, solved.job, 1e-6 * largest(solved.problem)
    if name == "per_node":
        worth = [
            (solved.value(int(size)) - solved.value(solved.nodes)) / (size - solved.nodes)
            for size in solved.values.sizes
            if size > solved.nodes
        ]
        assert any(figures[name] == pytest.approx(one, rel=1e-3, abs=near) for one in worth), sentence
    elif name == "needed":
        assert problem.objective_metric is ObjectiveMetric.THROUGHPUT
        faster = with_rate(problem, solved.index, int(figures["needs"]), figures[name])
        forced = by_trying(faster, lambda counts: counts[solved.index] == figures["needs"])
        rounded = 1e-3 * figures[name] * job.weight * problem.forward_seconds
        assert forced == pytest.approx(solved.optimum, rel=1e-6, abs=rounded + near), sentence
    else:
        assert name == "equal", name
        equal = replace(
            problem,
            jobs=tuple(replace(one, weight=one.weight / one.share_weight, share_weight=1.0) for one in problem.jobs),
        )
        best = by_trying(equal)
        assert by_trying(equal, lambda counts: counts[solved.index] == figures[name]) == pytest.approx(best, abs=near)
        assert figures[name] != solved.nodes


def with_rate(problem: AllocationProblem, index: int, nodes: int, rate: float) -> AllocationProblem:
    """The same with another rate of a job at one scale."""
    job: JobDemand = problem.jobs[index]
    sizes = range(1, job.curve[-1].nodes + 1)
    known = zip(sizes, rates(job, list(sizes)), strict=True)
    points = tuple(ScalingPoint(size, rate if size == nodes else float(old)) for size, old in known)
    return replace(problem, jobs=(*problem.jobs[:index], replace(job, curve=points), *problem.jobs[index + 1 :]))


@SLOW
@given(problem=owned_problems(), data=st.data())
def test_every_figure_that_is_told_of_the_pool(problem: AllocationProblem, data: st.DataObject) -> None:
    pins = {
        job.id: ScalePin(data.draw(st.integers(0, 6)), data.draw(st.booleans()), until=1.0)
        for job in problem.jobs
        if data.draw(st.booleans())
    }
    part = planned(problem, pins)
    whole, rest, near = part.problem.whole, part.problem.rest, 1e-8 * largest(problem)
    account = PartExplainer(part).account()
    pool = len(rest.nodes)
    counts = {job.id: part.count(job.id) for job in whole.jobs}
    objective = 0.0
    for job in whole.jobs:
        values = scale_values(job, whole)
        place = values.index(counts[job.id])
        if place < len(values.sizes) and values.sizes[place] == counts[job.id]:
            objective += float(values.values[place])
    optimum = on_pool_of(rest, pool)
    expected = {
        "pool": len(whole.nodes),
        "unused": len(whole.nodes) - sum(counts.values()),
        "objective": objective,
        "seconds": whole.forward_seconds,
        "more": on_pool_of(rest, pool + 1) - optimum,
        "fewer": optimum - on_pool_of(rest, pool - 1) if pool else 0.0,
        "pinned": sum(counts[job_id] for job_id in part.problem.pinned),
        "pin_cost": by_trying(whole) - objective,
    }
    for sentence in sentences.of_part(account, whole, ""):
        for name, figure in told(sentence, OF_PARTS).items():
            assert figure == pytest.approx(expected[name], rel=1e-3, abs=near), (name, sentence)


@pytest.mark.parametrize("nodes", range(1, 7))
def test_with_equal_shares_a_job_would_have_what_is_told(nodes: int) -> None:
    curve = (ScalingPoint(1, 10.0), ScalingPoint(2, 18.0), ScalingPoint(3, 24.0), ScalingPoint(4, 28.0))
    jobs = tuple(
        JobDemand(f"j{place}", 1, 4, curve, weight=share, share_weight=share) for place, share in enumerate((0.25, 1.0))
    )
    problem = AllocationProblem(tuple(f"n{place}" for place in range(nodes)), 100.0, jobs)
    part, seen = planned(problem), 0
    for index, job in enumerate(jobs):
        text = sentences.of_job(PartExplainer(part).job(job.id), problem)[-1]
        figures = told(text, OF_JOBS)
        assert figures["share"] == job.share_weight
        if "equal" in figures:
            seen += 1
            check_by_solving("equal", figures, Solved(problem, index, part), text)
    assert seen or nodes in (1, 6)
