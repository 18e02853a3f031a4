"""Checks of an allocation problem; errors name the field. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import chain

from malletrain.allocator.problem.allocation_problem import AllocationProblem, JobDemand, ObjectiveMetric
from malletrain.allocator.problem.objective import metric_scale, worths
from malletrain.common.memory_by_job import MemoryByJob
from malletrain.model.scaling import ScalingPoint
from malletrain.model.topology import TopologyPreference, path_problem
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.job_values import check_curve

_MAX_VALUE = 1e100
"""Largest value of a scale: far above anything measured, and small enough for sums to stay finite."""

_MAX_FORWARD_SECONDS = 1e9
"""Longer than any T_fwd."""

_checked: MemoryByJob[None] = MemoryByJob()
_checked_lists: MemoryByJob[None] = MemoryByJob()


def validate(problem: AllocationProblem) -> None:
    """Check a problem.

    Raises:
        InvalidInputError: the problem is not valid; the error names the field, e.g. `jobs[1].curve[2].nodes`.
    """
    _unique("nodes", problem.nodes)
    if not (math.isfinite(problem.forward_seconds) and problem.forward_seconds > 0):
        raise InvalidInputError("forward_seconds", "a number above 0", problem.forward_seconds)
    stays = problem.expected_stay_seconds
    # Without a loop where all are right: there may be ten thousand. A sum shows NaN and infinity, which `min` may not.
    if stays and not (math.isfinite(sum(stays.values())) and min(stays.values()) >= 0):
        for name, stay in stays.items():
            _not_negative(f"expected_stay_seconds[{name!r}]", stay)
    for owner, limit in problem.owner_limits.items():
        if limit < 0:
            raise InvalidInputError(f"owner_limits[{owner!r}]", "at least 0", limit)
    if problem.max_nodes is not None and problem.max_nodes < 0:
        raise InvalidInputError("max_nodes", "at least 0", problem.max_nodes)
    _unique_ids(problem.jobs)
    for index, job in enumerate(problem.jobs):
        terms = job, problem.objective_metric, problem.forward_seconds
        _checked.value(job.id, terms, partial(_check_job, f"jobs[{index}]", job, problem))
    _check_holders(problem)
    _check_kinds(problem)
    for path in dict.fromkeys(problem.paths.values()):
        if expected := path_problem(path):
            raise InvalidInputError("groups", expected, path)


def fault_of(job: JobDemand) -> str:
    """What is wrong with the figures of one job, with the field; empty where nothing is.

    A plan that leaves it out can be made. With it there would be none, for nobody.
    """
    try:
        for metric in ObjectiveMetric:  # pools may have their own
            _check_job("job", job, AllocationProblem((), _MAX_FORWARD_SECONDS, (), objective_metric=metric))
    except InvalidInputError as error:
        return str(error)
    return ""


def _unique(field: str, names: Sequence[str]) -> None:
    if len(set(names)) == len(names) and all(names):
        return
    seen: set[str] = set()
    for index, name in enumerate(names):
        if not name:
            raise InvalidInputError(f"{field}[{index}]", "a name", name)
        if name in seen:
            raise InvalidInputError(f"{field}[{index}]", "each node once", name)
        seen.add(name)


def _unique_ids(jobs: Sequence[JobDemand]) -> None:
    seen: set[str] = set()
    for index, job in enumerate(jobs):
        if not job.id:
            raise InvalidInputError(f"jobs[{index}].id", "an identifier", job.id)
        if job.id in seen:
            raise InvalidInputError(f"jobs[{index}].id", "each job once", job.id)
        seen.add(job.id)


def _check_job(field: str, job: JobDemand, problem: AllocationProblem) -> None:
    _check_terms(field, job)
    rest = job.curve, job.permitted_nodes, job.stalls, job.min_nodes, job.max_nodes
    _checked_lists.value(job.id, rest, lambda: _check_lists(field, job))
    _check_magnitude(field, job, problem)


def _check_terms(field: str, job: JobDemand) -> None:
    if job.min_nodes < 1:
        raise InvalidInputError(f"{field}.min_nodes", "at least 1", job.min_nodes)
    if job.max_nodes < job.min_nodes:
        raise InvalidInputError(f"{field}.max_nodes", f"at least min_nodes ({job.min_nodes})", job.max_nodes)
    least = 2 if job.topology is TopologyPreference.REQUIRE_REPLICA else 1
    if job.nodes_per_replica < least:
        raise InvalidInputError(f"{field}.nodes_per_replica", f"at least {least}", job.nodes_per_replica)
    _not_negative(f"{field}.scale_up_seconds", job.scale_up_seconds)
    _not_negative(f"{field}.scale_down_seconds", job.scale_down_seconds)
    _not_negative(f"{field}.boot_seconds", job.boot_seconds)
    if not (math.isfinite(job.weight) and job.weight > 0):
        raise InvalidInputError(f"{field}.weight", "a number above 0", job.weight)
    check_curve(f"{field}.value", job.value)
    if not (math.isfinite(job.share_weight) and job.share_weight > 0):
        raise InvalidInputError(f"{field}.share_weight", "a number above 0", job.share_weight)


def _check_lists(field: str, job: JobDemand) -> None:
    _check_curve(f"{field}.curve", job.curve)
    _check_permitted(f"{field}.permitted_nodes", job)
    _check_stalls(f"{field}.stalls", job)


def _check_curve(field: str, curve: Sequence[ScalingPoint]) -> None:
    if not curve:
        raise InvalidInputError(field, "at least one point", "none")
    before = -1
    for index, point in enumerate(curve):
        _not_negative(f"{field}[{index}].rate", point.rate)
        if point.nodes < 0 or point.nodes <= before:
            wanted = "at least 0" if index == 0 else f"more than in the point before ({before})"
            raise InvalidInputError(f"{field}[{index}].nodes", wanted, point.nodes)
        if point.nodes == 0 and point.rate != 0:
            raise InvalidInputError(f"{field}[{index}].rate", "0 at 0 nodes", point.rate)
        before = point.nodes
    if before == 0:
        raise InvalidInputError(field, "a point above 0 nodes", "none")


def _check_magnitude(field: str, job: JobDemand, problem: AllocationProblem) -> None:
    """Values must be finite; products of finite numbers need not be."""
    stalls = (stall.seconds for stall in job.stalls)
    longest = max(problem.forward_seconds, job.scale_up_seconds, job.scale_down_seconds, job.boot_seconds, *stalls)
    scale = metric_scale(job, problem.objective_metric)
    rates = [point.rate for point in job.curve]
    worth = rates
    if not job.value.linear:  # a value curve makes no more of what is between two points than of these
        counted = worths(job, [point.nodes for point in job.curve]).tolist()
        worth = [max(both) for both in zip(rates, counted, strict=True)]
    for index, (rate, most) in enumerate(zip(rates, worth, strict=True)):
        if not scale * most * longest <= _MAX_VALUE:
            expected = f"a rate that is worth at most {_MAX_VALUE:g} with the weight, over {longest:g} seconds"
            raise InvalidInputError(f"{field}.curve[{index}].rate", expected, rate)


def _check_permitted(field: str, job: JobDemand) -> None:
    before = 0
    for index, size in enumerate(job.permitted_nodes):
        if not job.min_nodes <= size <= job.max_nodes:
            raise InvalidInputError(f"{field}[{index}]", f"within {job.min_nodes} to {job.max_nodes}", size)
        if size <= before:
            raise InvalidInputError(f"{field}[{index}]", f"more than the one before ({before})", size)
        before = size


def _check_stalls(field: str, job: JobDemand) -> None:
    seen: set[tuple[int, int]] = set()
    for index, stall in enumerate(job.stalls):
        at, pair = f"{field}[{index}]", (stall.from_nodes, stall.to_nodes)
        if stall.from_nodes < 0:
            raise InvalidInputError(f"{at}.from_nodes", "at least 0", stall.from_nodes)
        if stall.to_nodes < 1 or stall.to_nodes == stall.from_nodes:
            raise InvalidInputError(f"{at}.to_nodes", "at least 1 and not from_nodes", stall.to_nodes)
        _not_negative(f"{at}.seconds", stall.seconds)
        if pair in seen:
            raise InvalidInputError(f"{at}.to_nodes", "each pair of scales once", stall.to_nodes)
        seen.add(pair)


def _check_holders(problem: AllocationProblem) -> None:
    known = set(problem.nodes)
    held = list(chain.from_iterable(job.current_nodes for job in problem.jobs))
    if len(set(held)) == len(held) and known.issuperset(held):
        return  # and no loop over ten thousand nodes says which one is wrong
    holders: dict[str, str] = {}
    for index, job in enumerate(problem.jobs):
        for position, node in enumerate(job.current_nodes):
            if node in known and node not in holders:
                holders[node] = job.id
                continue
            field = f"jobs[{index}].current_nodes[{position}]"
            if node not in known:
                raise InvalidInputError(field, "one of nodes", node)
            raise InvalidInputError(field, f"a node that no other entry holds (job {holders[node]} does)", node)


def _check_kinds(problem: AllocationProblem) -> None:
    if not problem.kinds:
        for index, job in enumerate(problem.jobs):
            if job.unsuitable_kinds:
                raise InvalidInputError(
                    f"jobs[{index}].unsuitable_kinds", "nothing without kinds", job.unsuitable_kinds
                )
        return
    known, seen = set(problem.nodes), set[str]()
    for index, kind in enumerate(problem.kinds):
        for position, node in enumerate(kind.nodes):
            if node not in known or node in seen:
                field = f"kinds[{index}].nodes[{position}]"
                raise InvalidInputError(field, "one of nodes" if node not in known else "each node once", node)
            seen.add(node)
    for index, job in enumerate(problem.jobs):
        before = -1
        for position, number in enumerate(job.unsuitable_kinds):
            if not before < number < len(problem.kinds):
                field = f"jobs[{index}].unsuitable_kinds[{position}]"
                raise InvalidInputError(field, f"ascending, {before + 1} to {len(problem.kinds) - 1}", number)
            before = number


def _not_negative(field: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise InvalidInputError(field, "a finite number of at least 0", value)
