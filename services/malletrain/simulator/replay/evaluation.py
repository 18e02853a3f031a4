"""A replay from beginning to end: the trace's events, the decisions, the yardsticks, the figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace
from malletrain.simulator.replay.engine import Progress, play
from malletrain.simulator.replay.metrics import Metrics, Yardstick, measure
from malletrain.simulator.replay.node_events import NodeEvent, node_events, resource_integral
from malletrain.simulator.replay.options import Options
from malletrain.simulator.replay.records import Played
from malletrain.simulator.replay.workload import TraceJob
from malletrain.simulator.replay.yardsticks import free_options, outcome_of, static_outcome


@dataclass(frozen=True)
class Scene:
    """Where a replay takes place: nodes in the trace's order, changes of the idle set, and the duration in seconds."""

    nodes: tuple[str, ...]
    events: tuple[NodeEvent, ...]
    duration_s: float

    @classmethod
    def of(cls, trace: Trace, duration_s: float) -> Scene:
        """The scene of a trace's first seconds.

        Raises:
            InvalidInputError: no node is idle in that time.
        """
        events = node_events(trace, duration_s)
        if not events:
            raise InvalidInputError("--hours", "a time in which at least one node is idle", duration_s / 3600.0)
        return cls(trace.nodes, tuple(events), duration_s)

    @property
    def node_hours(self) -> float:
        """Resource integral in node-hours (Eq. 17)."""
        return resource_integral(self.events, self.duration_s)

    @property
    def equivalent_nodes(self) -> float:
        """N_eq (Eq. 18)."""
        return self.node_hours * 3600.0 / self.duration_s


@dataclass(frozen=True)
class Evaluated:
    """A replay with its figures; wall_seconds is what the replay itself took, yardsticks apart."""

    played: Played
    metrics: Metrics
    wall_seconds: float
    free: Played | None


def evaluate(
    scene: Scene,
    jobs: Sequence[TraceJob],
    options: Options,
    *,
    bound: bool = True,
    progress: Progress = lambda _: None,
    seconds: Callable[[], float] = time.perf_counter,
) -> Evaluated:
    """Replay and measure.

    Args:
        scene: Nodes and events.
        jobs: Jobs in the order of submission.
        options: What to do.
        bound: Replay with free rescaling too, for the zero-cost bound.
        progress: Told the simulated second after every decision.
        seconds: A clock that only wall_seconds depends on.
    """
    started = seconds()
    played = play(scene.events, scene.nodes, jobs, options, progress)
    wall_seconds = seconds() - started
    free = play(scene.events, scene.nodes, jobs, free_options(options)) if bound else None
    yardstick = Yardstick(
        scene.node_hours,
        scene.equivalent_nodes,
        static_outcome(jobs, scene.equivalent_nodes, options),
        None if free is None else outcome_of(free),
    )
    return Evaluated(played, measure(played, yardstick, options.forward_s), wall_seconds, free)
