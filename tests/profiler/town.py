"""A few jobs on paper that do what the orders of runs ask for, by the allocator's own rule for holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from malletrain.allocator.holds import Hold, held_counts
from malletrain.profiler.desk import Advance, Desk, JobView, Order, Pace, Scene, advance
from malletrain.profiler.knots import Knot
from malletrain.profiler.sizes import landmarks, next_listed

PACE = Pace(least_top_share=1.0, least_steps=3, visit_seconds=30.0, climb_seconds=100.0, retry_seconds=5.0)


@dataclass
class Resident:
    """A job: its scales, the nodes it has, and when it will be steady again."""

    scales: tuple[int, ...]
    nodes: int = 0
    busy_until: float = 0.0
    steps: dict[int, int] = field(default_factory=dict)


class Town:
    """Jobs, idle nodes, and runs. A second passes at each tick."""

    def __init__(self, idle: int, residents: Mapping[str, Resident], wanted: Sequence[str] = ()) -> None:
        self.now = 1000.0
        self.idle = idle
        self.residents = dict(residents)
        self.wanted = set(wanted)
        self.desk = Desk()
        self.orders: Mapping[str, Order] = {}

    # What runs know: `Knowledge`.

    def wants(self, job_id: str) -> bool:
        return job_id in self.wanted

    def largest(self, job_id: str, scales: Sequence[int]) -> int:
        return scales[-1]

    def knot(self, job_id: str, nodes: int) -> Knot | None:
        steps = self.residents[job_id].steps.get(nodes, 0)
        when = self.now if self.residents[job_id].nodes == nodes else 0.0
        error = 0.04 if steps >= 5 else 1.0
        return Knot(nodes, 10.0 * nodes, steps, error, when) if steps else None

    def next_scale(self, job_id: str, present: int, top: int, visited: Sequence[int], pool: int) -> int | None:
        return next_listed(landmarks([s for s in self.residents[job_id].scales if s <= top]), present, visited)

    # What happens.

    def scene(self) -> Scene:
        views = (
            JobView(name, entry.scales, entry.nodes, self.now >= entry.busy_until)
            for name, entry in sorted(self.residents.items())
        )
        return Scene(self.now, self.idle, tuple(views))

    def tick(self, stall: float = 2.0) -> Advance:
        """Let the Profiler look, and the jobs follow its orders."""
        self.now += 1.0
        for entry in self.residents.values():
            if entry.nodes and self.now >= entry.busy_until:
                entry.steps[entry.nodes] = entry.steps.get(entry.nodes, 0) + 1
        step = advance(self.desk, self.scene(), self, PACE)
        self.desk, self.orders = step.desk, step.orders
        holds = {name: Hold(order.nodes, order.grow, inf) for name, order in step.orders.items()}
        present = {name: entry.nodes for name, entry in self.residents.items()}
        sizes = {name: (0, *entry.scales) for name, entry in self.residents.items()}
        for name, count in held_counts(present, sizes, holds, self.idle).items():
            if count != present[name]:
                self.residents[name].nodes = count
                self.residents[name].busy_until = self.now + stall
        return step

    def lose(self, name: str) -> None:
        """The scheduler takes a node of a job."""
        entry = self.residents[name]
        if not entry.nodes:
            return
        self.idle -= 1
        entry.nodes = max((scale for scale in (0, *entry.scales) if scale < entry.nodes), default=0)
        entry.busy_until = self.now + 1.0

    def share_out(self) -> None:
        """What an ordinary plan does between profiles: as equal shares as can be."""
        for entry in self.residents.values():
            entry.nodes = entry.scales[0]
        while free := self.idle - sum(entry.nodes for entry in self.residents.values()):
            poorest = min(self.residents.values(), key=lambda entry: entry.nodes)
            if poorest.nodes >= poorest.scales[-1]:
                break
            poorest.nodes += min(free, 1)


def scales(least: int, most: int) -> tuple[int, ...]:
    return tuple(range(least, most + 1))
