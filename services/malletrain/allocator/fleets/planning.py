"""Fleets in a plan: each is one job of the problem, and the nodes that it gets are divided among its members. Pure.

The curve of that job is what its planner would have the members train on so many nodes. Its weight is the mean of the
members' weights: their rates are added up in the curve already.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from malletrain.allocator.fleets.division import FleetDivision, divide_gpus
from malletrain.allocator.fleets.live_fleet import LiveFleet, LiveMember, measured_feed_rate, remaining_parts
from malletrain.allocator.fleets.members import FleetDecision, FleetMember
from malletrain.allocator.fleets.placement import Gpu, place_members, place_whole_nodes
from malletrain.allocator.fleets.profiling import awaits_first_rate, late_in_words
from malletrain.allocator.problem.allocation_problem import Allocation, Assignment
from malletrain.allocator.problem.forward_time import ForwardTime
from malletrain.allocator.problem.planner import JobCurve, PlanInput, PlannableJob
from malletrain.allocator.problem.scale_pins import ScalePin
from malletrain.common.gpus import gpu_name, gpu_number, node_of
from malletrain.fleet.choose import choose
from malletrain.fleet.makespan import Replanning
from malletrain.fleet.problem import FleetPlanner
from malletrain.fleet.sharing import Sharing
from malletrain.model.node_needs import suits
from malletrain.model.scaling import ScalingPoint

_ALL_SIZES = 16
_KEPT = 64
_ALIKE = 0.25
"""By which share GPUs and preprocessing may differ from those for which planners were compared."""


@dataclass(frozen=True, slots=True)
class DividerChoice:
    """Why a planner divides the GPUs of a fleet.

    Attributes:
        divider: The planner; not AUTO.
        reason: Why, for people.
        gpus: For how many GPUs planners were compared; 0: they were not.
        preprocess_rate: Samples per second that CPUs were reckoned to preprocess then; 0: no limit.
    """

    divider: FleetPlanner
    reason: str
    gpus: int = 0
    preprocess_rate: float = 0.0


@dataclass(frozen=True)
class PlannedFleet:
    """A fleet in a plan.

    Attributes:
        id: The fleet.
        job: The fleet as one job of the problem.
        live: Its members and their rates at this time.
        choice: Why its planner divides its GPUs.
        held: GPUs of each member.
        sizes: How many GPUs of each node members may have.
        usable: Numbers of those GPUs that are not just being released.
    """

    id: str
    job: PlannableJob
    live: LiveFleet
    choice: DividerChoice
    held: Mapping[str, frozenset[Gpu]]
    sizes: Mapping[str, int]
    usable: Mapping[str, tuple[int, ...]]

    def decide(self, nodes: Sequence[str]) -> FleetDecision:
        """Divide nodes among the members."""
        live, usable = self.live, {node: self.usable[node] for node in nodes}
        # GPUs that are just being released count, so that nobody is given others for a moment.
        gpus = min(live.max_gpus, sum(self.sizes[node] for node in nodes))
        division = divide_gpus(live, gpus)
        whole = live.divider is FleetPlanner.MILP
        placed = (place_whole_nodes if whole else place_members)(dict(division.counts), usable, self.held)
        members = tuple((member.job_id, _names(placed.get(member.job_id, ()))) for member in live.members)
        return FleetDecision(
            self.id,
            live.divider,
            "; ".join(filter(None, (division.measuring, self.choice.reason, late_in_words(live.members)))),
            division.rate,
            division.pace,
            members,
            division.flotilla,
            gpus,
            self.choice.gpus,
            tuple((member.job_id, member.late) for member in live.members if member.late is not None),
            self.choice.reason,
            self.choice.preprocess_rate,
        )


@dataclass(frozen=True)
class FleetPlanning:
    """What a plan is made from when every fleet is one job.

    Attributes:
        plan_input: The input with a job for each fleet in place of its members.
    """

    plan_input: PlanInput
    fleets: tuple[PlannedFleet, ...] = ()

    def decide(self, allocation: Allocation) -> tuple[FleetDecision, ...]:
        """Divide the nodes of each fleet among its members."""
        nodes = {entry.job_id: entry.nodes for entry in allocation.assignments}
        return tuple(fleet.decide(nodes.get(fleet.id, ())) for fleet in self.fleets)


def assignments(allocation: Allocation, decisions: Iterable[FleetDecision]) -> tuple[Assignment, ...]:
    """What jobs get: nodes, and members of fleets GPUs in place of their fleet's nodes."""
    fleets = {decision.fleet_id: decision for decision in decisions}
    entries: list[Assignment] = []
    for entry in allocation.assignments:
        decision = fleets.get(entry.job_id)
        entries += [entry] if decision is None else [Assignment(job_id, gpus) for job_id, gpus in decision.members]
    return tuple(entries)


def with_fleets(plan_input: PlanInput, forward: ForwardTime, before: Mapping[str, FleetDecision]) -> FleetPlanning:
    """Put a job for each fleet in the place of its first member.

    Args:
        plan_input: Nodes, jobs and curves.
        forward: Where T_fwd comes from.
        before: How the newest plan that was applied divided the GPUs of each fleet.
    """
    members: dict[str, list[PlannableJob]] = {}
    for job in plan_input.planned_jobs:
        if job.member is not None:
            members.setdefault(job.member.fleet_id, []).append(job)
    if not members and not plan_input.busy_gpus:
        return FleetPlanning(plan_input)
    foreign = {node_of(gpu) for gpu, fleet_id in plan_input.busy_gpus.items() if fleet_id not in members}
    base = replace(plan_input, busy_nodes=plan_input.busy_nodes | foreign)
    fleets = {
        fleet_id: _plan_fleet(fleet_id, jobs, base, forward, before.get(fleet_id)) for fleet_id, jobs in members.items()
    }
    jobs: dict[str, PlannableJob] = {}
    for job in plan_input.jobs:
        if job.member is None:
            jobs[job.id] = job
        elif job.member.fleet_id in fleets:
            jobs.setdefault(job.member.fleet_id, fleets[job.member.fleet_id].job)
    inside = {job.id for owned in members.values() for job in owned}
    planned = replace(
        base,
        jobs=tuple(jobs.values()),
        curves={name: curve for name, curve in base.curves.items() if name not in inside}
        | {fleet.id: _curve(fleet, base) for fleet in fleets.values()},
        pins=_pins(base, inside, fleets),
        growth_seconds=dict(base.growth_seconds) | _growths(base, members),
    )
    return FleetPlanning(planned, tuple(fleets.values()))


def _plan_fleet(
    fleet_id: str, jobs: Sequence[PlannableJob], base: PlanInput, forward: ForwardTime, before: FleetDecision | None
) -> PlannedFleet:
    members = {job.id: job.member for job in jobs if job.member is not None}
    terms = members[jobs[0].id].terms
    sizes = {node.name: terms.gpus_of(node.gpus) for node in base.free_to_plan}
    usable = _usable(fleet_id, jobs, base, sizes)
    held = {job.id: frozenset(map(_gpu, job.current_nodes)) for job in jobs}
    own = {node_of(gpu) for job in jobs for gpu in job.current_nodes}
    own |= {node_of(gpu) for gpu, fleet in base.busy_gpus.items() if fleet == fleet_id}
    needs = jobs[0].needs  # of all members: they share nodes
    suitable = {node.name for node in base.free_to_plan if node.name in own or suits(needs, node.name, node.traits)}
    common = Counter(sizes[name] for name in own & set(sizes)) or Counter(sizes[name] for name in sorted(suitable))
    per_node = common.most_common(1)[0][0] if common else terms.gpus_of(0)
    composite = PlannableJob(
        id=fleet_id,
        min_nodes=1,
        max_nodes=terms.max_nodes,
        weight=statistics.fmean(job.weight for job in jobs),
        current_nodes=tuple(node for node in usable if node in own),
        owner=jobs[0].owner,
        share_weight=statistics.fmean(job.share_weight for job in jobs),
        takes_slow=True,
        needs=needs,
    )
    live = LiveFleet(
        terms,
        FleetPlanner.LIST,
        _live_members(jobs, members, base, held, usable),
        frozenset(job_id for job_id, fleet in base.resting.items() if fleet == fleet_id),
        before.flotilla if before is not None else (),
        before.gpus if before is not None else 0,
        per_node,
        max(1, per_node * min(terms.max_nodes, len(suitable))),
        forward.of(
            base.expected_stays.values(),
            base.changes,
            (base.start_seconds(job.id) for job in jobs),
        ),
        _stall(jobs, base.curves),
        measured_feed_rate(members.values()),
    )
    choice = _choice(live, before)
    return PlannedFleet(fleet_id, composite, replace(live, divider=choice.divider), choice, held, sizes, usable)


def _live_members(
    jobs: Sequence[PlannableJob],
    members: Mapping[str, FleetMember],
    base: PlanInput,
    held: Mapping[str, frozenset[Gpu]],
    usable: Mapping[str, tuple[int, ...]],
) -> tuple[LiveMember, ...]:
    remaining, curves = remaining_parts(members), base.curves
    return tuple(
        LiveMember(
            job.id,
            curves[job.id].points,
            remaining[job.id],
            sum(number in usable.get(node, ()) for node, number in held[job.id]),
            curves[job.id].known,
            curves[job.id].sure,
            members[job.id].profiled,
            job.min_nodes,
            job.max_nodes,
            job.permitted_nodes,
            base.late_rates.get(job.id),
        )
        for job in jobs
    )


def _usable(
    fleet_id: str, jobs: Sequence[PlannableJob], base: PlanInput, sizes: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """Numbers of the GPUs of each node that members may have.

    A GPU of a member that is being stopped is none of them, unless it is promised to another member already.
    """
    promised = {gpu for job in jobs for gpu in job.current_nodes}
    busy = {gpu for gpu, fleet in base.busy_gpus.items() if fleet == fleet_id} - promised
    return {
        name: tuple(number for number in range(size) if gpu_name(name, number) not in busy)
        for name, size in sizes.items()
    }


def _stall(jobs: Sequence[PlannableJob], curves: Mapping[str, JobCurve]) -> float:
    return statistics.fmean(max(curves[job.id].scale_up_seconds, curves[job.id].scale_down_seconds) for job in jobs)


def _choice(live: LiveFleet, before: FleetDecision | None) -> DividerChoice:
    """Choose the planner that divides the GPUs of a fleet now.

    They are compared anew when members have ended or come, and for other numbers of GPUs or rates of preprocessing.
    """
    wanted, rate = live.terms.planner, live.preprocess_rate(live.max_gpus)
    if wanted is not FleetPlanner.AUTO:
        return DividerChoice(wanted, f"{wanted.value} as the fleet asks for", preprocess_rate=rate)
    unknown = sum(awaits_first_rate(member, live.max_gpus) for member in live.members)
    if unknown:
        return DividerChoice(
            FleetPlanner.LIST, f"the rates of {unknown} of {len(live.members)} members are not known yet"
        )
    if before is None or not before.compared_gpus:
        return _compare(_without_place(live), None)
    known = {job_id for job_id, _ in before.members}
    same = {member.job_id for member in live.members} | (live.resting & known) == known
    alike = _alike(live.max_gpus, before.compared_gpus) and _alike(rate, before.preprocess_rate)
    if same and alike:
        return DividerChoice(before.divider, before.planner_reason, before.compared_gpus, before.preprocess_rate)
    return _compare(_without_place(live), before.divider)


def _alike(now: float, before: float) -> bool:
    """Whether a number is near enough to what it was when planners were compared."""
    return abs(now - before) <= _ALIKE * before


def _without_place(live: LiveFleet) -> LiveFleet:
    """What the choice of a planner depends on: neither present GPUs nor a few samples more or less."""
    members = tuple(replace(member, held=0, sure=(), parts=_coarse(member.parts), late=None) for member in live.members)
    return replace(live, members=members, resting=frozenset(), flotilla=(), flotilla_gpus=0)


def _coarse(parts: int) -> int:
    """Remaining work to about a tenth of it."""
    unit = int(10 ** max(0, len(str(parts)) - 2))
    return max(1, round(parts / unit) * unit)


@lru_cache(_KEPT)
def _compare(live: LiveFleet, present: FleetPlanner | None) -> DividerChoice:
    rules = Replanning(stall_s=live.stall_s)
    choice = choose(live.problem(live.max_gpus), rules, present)
    return DividerChoice(choice.planner, choice.reason, live.max_gpus, live.preprocess_rate(live.max_gpus))


def _curve(fleet: PlannedFleet, base: PlanInput) -> JobCurve:
    """What the members would train on 1, 2… nodes, and how long rescales take."""
    live = fleet.live
    most = max(1, live.max_gpus // live.gpus_per_node)
    points = _points(live, _sizes(most, len(fleet.job.current_nodes)))
    curves = [base.curves[member.job_id] for member in live.members]
    # In a flotilla all wait for the slowest, and so do those that share.
    in_flotilla = live.divider is FleetPlanner.FLEET
    waiting = live.preprocessing(Sharing.FLOTILLA if in_flotilla else Sharing.ALONE, 1).in_lockstep
    of_all = max if waiting else statistics.fmean
    return JobCurve(
        points,
        float(of_all([curve.scale_up_seconds for curve in curves])),
        float(of_all([curve.scale_down_seconds for curve in curves])),
    )


def _points(live: LiveFleet, sizes: Sequence[int]) -> tuple[ScalingPoint, ...]:
    """The curve never falls: GPUs that gain nothing may be left idle."""
    best, points = 0.0, []
    for nodes in sizes:
        best = max(best, _divide(live, nodes * live.gpus_per_node).rate)
        points.append(ScalingPoint(nodes, best))
    return tuple(points)


def _divide(live: LiveFleet, gpus: int) -> FleetDivision:
    return divide_gpus(live, min(gpus, live.max_gpus))


def _sizes(max_nodes: int, present: int) -> list[int]:
    """All numbers of nodes where they are few, otherwise doubled and halfway between, and those around the present."""
    if max_nodes <= _ALL_SIZES:
        return list(range(1, max_nodes + 1))
    powers = [2**power for power in range(max_nodes.bit_length())]
    around = (present - 1, present, present + 1, max_nodes)
    return sorted(
        {size for size in (*powers, *(3 * power // 2 for power in powers), *around) if 1 <= size <= max_nodes}
    )


def _pins(base: PlanInput, inside: set[str], fleets: Mapping[str, PlannedFleet]) -> dict[str, ScalePin]:
    """Pins of other jobs. While a profile gathers nodes, fleets keep what they have, as all jobs do."""
    pins = {job_id: pin for job_id, pin in base.pins.items() if job_id not in inside}
    gathering = [pin.until for pin in pins.values() if pin.grow or pin.nodes == 0]
    if gathering:
        pins |= {fleet.id: ScalePin(0, False, max(gathering)) for fleet in fleets.values() if fleet.job.current_nodes}
    return pins


def _growths(base: PlanInput, members: Mapping[str, Sequence[PlannableJob]]) -> dict[str, float]:
    known = {
        fleet_id: [base.growth_seconds[job.id] for job in jobs if job.id in base.growth_seconds]
        for fleet_id, jobs in members.items()
    }
    return {fleet_id: statistics.median(seconds) for fleet_id, seconds in known.items() if seconds}


def _gpu(name: str) -> Gpu:
    return node_of(name), gpu_number(name) or 0


def _names(gpus: Iterable[Gpu]) -> tuple[str, ...]:
    return tuple(gpu_name(node, number) for node, number in sorted(gpus))
