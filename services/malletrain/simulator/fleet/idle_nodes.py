"""An ensemble on the idle nodes of a trace, and who divides these among its members.

Preprocessing is a limit of flotillas only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from malletrain.allocator.problem.forward_time import FORWARD_SECONDS
from malletrain.fleet.baselines import longest_first, sequential
from malletrain.fleet.flotilla import Flotilla, create_flotilla
from malletrain.fleet.lifecycle import FleetRun, train_to_next_end
from malletrain.fleet.makespan import Replanning
from malletrain.fleet.problem import FleetProblem
from malletrain.fleet.rates import RateTable, rate_table
from malletrain.fleet.remaining_work import replan_counts
from malletrain.fleet.replan import after_join, after_leave
from malletrain.fleet.sharing import of_flotillas
from malletrain.model.scaling import ScalingPoint
from malletrain.simulator.replay.fast_engine import run_replay
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.node_events import NodeEvent
from malletrain.simulator.replay.options import ReplayOptions

STALL_S = Replanning().stall_s


@dataclass(frozen=True, slots=True)
class FleetMoment:
    """What a division is made from.

    Attributes:
        work: Samples that each member still needs, without those that are done.
        counts: GPUs that members have, fewer than they were given where nodes have left.
        gpus: GPUs that there are.
    """

    work: Mapping[int, float]
    counts: Mapping[int, int]
    gpus: int


@dataclass(frozen=True, slots=True)
class Division:
    """GPUs of members from now on.

    Attributes:
        counts: GPUs of each member that trains.
        stall_s: Seconds for which members whose GPUs change do not train.
        restarts: Whether all members stop for as long, also those whose GPUs stay.
    """

    counts: dict[int, int]
    stall_s: float = STALL_S
    restarts: bool = False


class GpuDivider(Protocol):
    """Divides GPUs at every event."""

    every_s: float
    """Seconds after which it wants to be asked again; infinite: only at events."""

    def divide(self, moment: FleetMoment) -> Division:
        """GPUs of members from now on."""

    def speeds(self, rates: Mapping[int, float]) -> Mapping[int, float]:
        """Samples/s of members from what each could do alone; 0 for one that is stalled."""


@dataclass
class OneEach:
    """One GPU each, the longest first."""

    table: RateTable
    every_s: float = float("inf")

    def divide(self, moment: FleetMoment) -> Division:
        """Those that have a GPU keep it."""
        waiting = {member: work for member, work in moment.work.items() if member not in moment.counts}
        free = moment.gpus - len(moment.counts)
        return Division(dict.fromkeys((*moment.counts, *longest_first(waiting, self.table)[:free]), 1))

    def speeds(self, rates: Mapping[int, float]) -> Mapping[int, float]:
        """Each member at its own rate: none waits for another."""
        return rates


@dataclass
class ByRemainingWork:
    """Gives GPUs so that the last member ends as early as possible."""

    table: RateTable
    every_s: float = Replanning().every_s

    def divide(self, moment: FleetMoment) -> Division:
        """Anew, if that is worth its stalls."""
        return Division(replan_counts(self.table, moment.work, moment.counts, moment.gpus, STALL_S))

    def speeds(self, rates: Mapping[int, float]) -> Mapping[int, float]:
        """Each member at its own rate: none waits for another."""
        return rates


@dataclass
class InFlotillas:
    """Flotilla after flotilla, each on the GPUs that there are."""

    problem: FleetProblem
    table: RateTable
    every_s: float = float("inf")
    _flotilla: Flotilla | None = field(default=None, init=False)
    _gpus: int = field(default=0, init=False)

    def divide(self, moment: FleetMoment) -> Division:
        """The same flotilla while enough of it trains: on fewer GPUs after a leave, on more if that is worth it."""
        present, before = self._going_on(moment), self._gpus
        self._gpus = moment.gpus
        if moment.gpus == 0:
            return Division({})
        if present is None:
            self._flotilla = create_flotilla(self.table, tuple(moment.work), moment.gpus, self.problem.tolerance)
            counts = dict(zip(self._flotilla.members, self._flotilla.gpus, strict=True))
            return Division(counts, self.problem.checkpoint_seconds, restarts=True)
        planned = dict(zip(present.members, present.gpus, strict=True))
        if any(moment.counts.get(member, 0) < count for member, count in planned.items()):
            self._flotilla = present = after_leave(self.table, present, moment.gpus).flotilla
        elif moment.gpus > before:
            room = sum(present.gpus) + moment.gpus - before
            larger = after_join(self.table, present, room, of_flotillas(self.problem), FORWARD_SECONDS, STALL_S)
            # Members that are done count as long as the flotilla is as it was.
            if larger != present:
                self._flotilla = present = larger
        return Division(dict(zip(present.members, present.gpus, strict=True)))

    def _going_on(self, moment: FleetMoment) -> Flotilla | None:
        """Members of the flotilla that are not done; None if they have too few of its GPUs."""
        if self._flotilla is None:
            return None
        pairs = zip(self._flotilla.members, self._flotilla.gpus, strict=True)
        active = [(member, count) for member, count in pairs if member in moment.work]
        if not active or sum(count for _, count in active) < self.problem.active_share * sum(self._flotilla.gpus):
            return None
        return Flotilla(tuple(member for member, _ in active), tuple(count for _, count in active))

    def speeds(self, rates: Mapping[int, float]) -> Mapping[int, float]:
        """All at one pace, or each at its own; nobody trains while one is stalled at one pace."""
        return of_flotillas(self.problem).paces(rates)


def member_jobs(problem: FleetProblem) -> tuple[ReplayJob, ...]:
    """The members as jobs: curves by whole nodes, up to the nodes on which each is fastest."""
    table, per_node = rate_table(problem), min(problem.gpus_per_node, problem.gpus)
    stall_s = Replanning().stall_s
    jobs = []
    for member, (model, samples) in enumerate(zip(problem.models, problem.samples(), strict=True)):
        rates = [table.rate(member, nodes * per_node) for nodes in range(1, problem.gpus // per_node + 1)]
        most = rates.index(max(rates)) + 1
        curve = tuple(ScalingPoint(nodes, rate) for nodes, rate in enumerate(rates[:most], 1))
        jobs.append(ReplayJob(model.id, model.id, 0.0, stall_s, stall_s, 1, most, samples, curve))
    return tuple(jobs)


def whole_nodes(problem: FleetProblem) -> FleetRun:
    """Train the members as independent jobs. A node that is smaller than the others is not used."""
    jobs = member_jobs(problem)
    count = problem.gpus // min(problem.gpus_per_node, problem.gpus)
    names = tuple(f"n{number}" for number in range(count))
    event = NodeEvent(0.0, tuple((name, 0.0) for name in names), ())
    # Long enough for any plan: each on one node, one after the other, with a stall at each start and end of another.
    slowest = sum(job.samples / job.curve[0].rate for job in jobs)
    max_s = 2 * (slowest + sequential(problem).seconds) + len(jobs) ** 2 * 2 * Replanning().stall_s
    options = ReplayOptions(duration_s=max_s, max_parallel=len(jobs))
    ended = {record.job: record.ended_s for record in run_replay([event], names, jobs, options).jobs}
    ends = tuple(float(ended[job.id] or max_s) for job in jobs)
    return FleetRun(max(ends), ends)


COMMIT_S = 5.0
"""Seconds between two commits of a member: what is done since the last one is lost with a node."""


@dataclass(frozen=True, slots=True)
class IdleNodesRun:
    """What an ensemble made of idle nodes.

    Attributes:
        seconds: Until every member was done; None: some are not at the end of the trace.
        done: Members that were done.
        utilisation: Samples that count, each as long as one GPU takes for it, over GPU-seconds offered until then.
        preemption_samples: Samples lost since the last commits, when nodes left.
        rescale_samples: Samples that members whose GPUs changed would have trained on meanwhile.
    """

    seconds: float | None
    done: int
    utilisation: float
    preemption_samples: float
    rescale_samples: float


def train_on_idle_nodes(
    problem: FleetProblem, table: RateTable, divider: GpuDivider, events: Sequence[NodeEvent], duration_s: float
) -> IdleNodesRun:
    """Train an ensemble on nodes that join and leave.

    Args:
        problem: The ensemble; its `gpus` are the most that are ever idle at once, or more.
        table: Its rates.
        divider: Who divides the GPUs.
        events: Changes of the idle set, by time.
        duration_s: Seconds until nothing is offered any more.
    """
    return _Simulation(problem, table, divider).run(events, duration_s)


class _Simulation:
    def __init__(self, problem: FleetProblem, table: RateTable, divider: GpuDivider) -> None:
        self._problem, self._table, self._divider = problem, table, divider
        self._remaining_samples = dict(enumerate(problem.samples()))
        self._free: dict[str, int] = {}
        self._held: dict[int, dict[str, int]] = {}
        self._stalled: dict[int, float] = {}
        self._since: dict[int, float] = {}
        self._broken: set[int] = set()
        self._now = self._offered = self._preempted = self._rescaled = 0.0

    def run(self, events: Sequence[NodeEvent], duration_s: float) -> IdleNodesRun:
        for event in (*events, NodeEvent(duration_s, (), ())):
            self._train_until(min(event.time_s, duration_s))
            if not self._remaining_samples or event.time_s >= duration_s:
                break
            self._apply(event)
            self._divide()
        work = self._problem.samples()
        trained = sum(
            (samples - self._remaining_samples.get(member, 0.0)) / self._table.rate(member, 1)
            for member, samples in enumerate(work)
        )
        return IdleNodesRun(
            None if self._remaining_samples else self._now,
            len(work) - len(self._remaining_samples),
            trained / self._offered if self._offered else 0.0,
            self._preempted,
            self._rescaled,
        )

    def _train_until(self, end_s: float) -> None:
        while self._remaining_samples and self._now < end_s:
            speeds = self._speeds()
            longest = min([end_s - self._now, self._divider.every_s, *self._stalled.values()])
            seconds, done = train_to_next_end(self._remaining_samples, speeds, self._problem.samples_per_epoch, longest)
            self._offered += seconds * self._gpus()
            self._now += seconds
            self._stalled = {member: rest - seconds for member, rest in self._stalled.items() if rest > seconds}
            for member in done:
                del self._remaining_samples[member]
                self._release(member)
            if self._remaining_samples and (done or seconds == self._divider.every_s):
                self._divide()

    def _speeds(self) -> dict[int, float]:
        counts = {member: sum(own.values()) for member, own in self._held.items()}
        rates = {m: 0.0 if m in self._stalled else self._table.rate(m, count) for m, count in counts.items()}
        return dict(self._divider.speeds(rates)) if rates else {}

    def _gpus(self) -> int:
        return sum(self._free.values()) + sum(sum(own.values()) for own in self._held.values())

    def _apply(self, event: NodeEvent) -> None:
        speeds = self._speeds()
        for node in event.left:
            self._free.pop(node, None)
            for member in [member for member, own in self._held.items() if node in own]:
                lost = speeds[member] * ((self._now - self._since[member]) % COMMIT_S)
                self._remaining_samples[member] += lost
                self._preempted += lost
                # What is lost with one node is not lost with the next one once more.
                self._since[member] = self._now
                self._broken.add(member)
                del self._held[member][node]
                if not self._held[member]:
                    self._release(member)
        for node, _ in event.joined:
            self._free[node] = self._problem.gpus_per_node

    def _divide(self) -> None:
        counts = {member: sum(own.values()) for member, own in self._held.items()}
        division = self._divider.divide(FleetMoment(self._remaining_samples, counts, self._gpus()))
        for member in [member for member in self._held if member not in division.counts]:
            self._release(member)
        for member in sorted(division.counts, key=lambda m: division.counts[m] - counts.get(m, 0)):
            self._resize(member, division.counts[member])
        self._stall(division, counts)

    def _stall(self, division: Division, before: dict[int, int]) -> None:
        for member, count in division.counts.items():
            if division.restarts or before.get(member, 0) != count or member in self._broken:
                self._stalled[member] = division.stall_s
                self._since[member] = self._now + division.stall_s
                self._rescaled += division.stall_s * self._table.rate(member, count)
        self._broken.clear()

    def _resize(self, member: int, count: int) -> None:
        """Give GPUs of nodes of the member, then of others; take those of the nodes where it has fewest."""
        own = self._held.setdefault(member, {})
        for node in sorted(own, key=lambda name: own[name]):
            moved = min(own[node], sum(own.values()) - count)
            if moved > 0:
                own[node] -= moved
                self._free[node] = self._free.get(node, 0) + moved
        for node in sorted(self._free, key=lambda name: (name not in own, -self._free[name])):
            moved = min(self._free[node], count - sum(own.values()))
            if moved > 0:
                own[node] = own.get(node, 0) + moved
                self._free[node] -= moved
        self._held[member] = {node: number for node, number in own.items() if number}

    def _release(self, member: int) -> None:
        for node, number in self._held.pop(member).items():
            self._free[node] = self._free.get(node, 0) + number
        self._stalled.pop(member, None)
