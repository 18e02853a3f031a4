"""An ensemble on the idle nodes of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from malletrain.fleet.lifecycle import train_to_next_end
from malletrain.fleet.problem import FleetProblem
from malletrain.fleet.rates import RateTable
from malletrain.simulator.fleet.dividing import Division, FleetMoment, GpuDivider
from malletrain.simulator.replay.node_events import NodeEvent

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
        self._left = dict(enumerate(problem.samples()))
        self._free: dict[str, int] = {}
        self._held: dict[int, dict[str, int]] = {}
        self._stalled: dict[int, float] = {}
        self._since: dict[int, float] = {}
        self._broken: set[int] = set()
        self._now = self._offered = self._preempted = self._rescaled = 0.0

    def run(self, events: Sequence[NodeEvent], duration_s: float) -> IdleNodesRun:
        for event in (*events, NodeEvent(duration_s, (), ())):
            self._train_until(min(event.time_s, duration_s))
            if not self._left or event.time_s >= duration_s:
                break
            self._apply(event)
            self._divide()
        work = self._problem.samples()
        trained = sum(
            (samples - self._left.get(member, 0.0)) / self._table.rate(member, 1) for member, samples in enumerate(work)
        )
        return IdleNodesRun(
            None if self._left else self._now,
            len(work) - len(self._left),
            trained / self._offered if self._offered else 0.0,
            self._preempted,
            self._rescaled,
        )

    def _train_until(self, end_s: float) -> None:
        while self._left and self._now < end_s:
            speeds = self._speeds()
            longest = min([end_s - self._now, self._divider.every_s, *self._stalled.values()])
            seconds, done = train_to_next_end(self._left, speeds, self._problem.samples_per_epoch, longest)
            self._offered += seconds * self._gpus()
            self._now += seconds
            self._stalled = {member: rest - seconds for member, rest in self._stalled.items() if rest > seconds}
            for member in done:
                del self._left[member]
                self._release(member)
            if self._left and (done or seconds == self._divider.every_s):
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
                self._left[member] += lost
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
        division = self._divider.divide(FleetMoment(self._left, counts, self._gpus()))
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
            taken = min(own[node], sum(own.values()) - count)
            if taken > 0:
                own[node] -= taken
                self._free[node] = self._free.get(node, 0) + taken
        for node in sorted(self._free, key=lambda name: (name not in own, -self._free[name])):
            taken = min(self._free[node], count - sum(own.values()))
            if taken > 0:
                own[node] = own.get(node, 0) + taken
                self._free[node] -= taken
        self._held[member] = {node: number for node, number in own.items() if number}

    def _release(self, member: int) -> None:
        for node, number in self._held.pop(member).items():
            self._free[node] = self._free.get(node, 0) + number
        self._stalled.pop(member, None)
