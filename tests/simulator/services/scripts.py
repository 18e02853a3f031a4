"""Scripts of events for the simulated services, and the journal that JobManager writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from malletrain.allocator.machine.cluster_cache import CachedProfile
from malletrain.allocator.problem.planner import JobCurve
from malletrain.allocator.problem.scale_pins import ScalePin
from malletrain.allocator.settings import AllocatorSettings
from malletrain.job_manager.machine.jobs import JobSpec
from malletrain.job_manager.machine.state import JobEvent
from malletrain.job_manager.machine.stimuli import Cancelled, Completion, Outcome, Progressed
from malletrain.job_manager.settings import JobManagerSettings
from malletrain.model.scaling import ScalingPoint
from malletrain.scavenger.machine.observations import NodeFacts
from malletrain.simulator.services.event_queue import EventQueue
from malletrain.simulator.services.simulated_services import ServicesOptions, SimulatedServices

UP_S, DOWN_S = 10.0, 4.0
NAMES = "abcdefgh"
"""Jobs in the order of their submission."""
LINEAR = JobCurve(tuple(ScalingPoint(nodes, 10.0 * nodes) for nodes in range(1, 9)), UP_S, DOWN_S)


class FixedStalls:
    """Trainings whose stalls depend on nothing but the direction of a rescale; a `TrainingModel`."""

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue
        self._scales: dict[str, int] = {}

    def start(self, job_id: str, nodes: tuple[str, ...]) -> float:
        self._scales[job_id] = len(nodes)
        return self._queue.now + UP_S

    def rescale(self, job_id: str, nodes: tuple[str, ...]) -> float:
        grows = len(nodes) > self._scales[job_id]
        self._scales[job_id] = len(nodes)
        return self._queue.now + (UP_S if grows else DOWN_S)

    def stop(self, job_id: str) -> None:
        del self._scales[job_id]


Do = Callable[[SimulatedServices], object]
"""What happens at one time of a script."""


def identifier(name: str) -> str:
    return f"j{NAMES.index(name) + 1:06d}"


def idle(*nodes: str) -> Do:
    """From now on these nodes are idle, and no others."""
    return lambda services: services.set_idle(dict.fromkeys(nodes, 0.0))


def submit(*names: str, least: int = 1, most: int = 8, **more: Any) -> Do:
    """Jobs are submitted; their curves are known."""

    def do(services: SimulatedServices) -> None:
        services.submit(
            [
                JobSpec(name=name, command=("train",), working_directory="/", min_nodes=least, max_nodes=most, **more)
                for name in names
            ]
        )
        services.set_profiles([CachedProfile(identifier(name), LINEAR) for name in names])

    return do


def pin(name: str, nodes: int, until: float) -> Do:
    """The Profiler asks for a scale."""
    profile = CachedProfile(identifier(name), LINEAR, ScalePin(nodes, True, until))
    return lambda services: services.set_profiles([profile])


def cancel(name: str) -> Do:
    return lambda services: services.apply(Cancelled(identifier(name)))


def progress(name: str, samples: int, stalled: bool = False) -> Do:
    return lambda services: services.apply(Progressed(identifier(name), samples, stalled))


def fail(name: str) -> Do:
    """All processes of a job end with an error."""
    return lambda services: services.launcher.end(identifier(name), Outcome.FAILED, "exit status 1")


def leave(name: str) -> Do:
    """Rank 0 ends with exit status 0 and has said nothing."""
    return lambda services: services.launcher.end(identifier(name), Outcome.EXITED)


def done(name: str) -> Do:
    """The trainer says that it is done."""
    return lambda services: services.launcher.end(identifier(name), Outcome.EXITED, completion=Completion())


def lose_worker(name: str, node: str) -> Do:
    """A worker dies; its supervisor starts it again."""
    return lambda services: services.launcher.lose_worker(identifier(name), node, DOWN_S)


@dataclass(frozen=True)
class Script:
    """A script and what comes of it.

    Attributes:
        title: What is shown.
        steps: What happens when, in seconds.
        journal: JobManager's journal, a row a line: time, job, state before, state after, reason code, nodes.
        refusals: Plans that JobManager refuses, a line each: time and reason.
        end: When the script ends, in seconds.
        max_parallel: Jobs that may take part at once.
        plan_seconds: Seconds from a plan's input to its arrival at JobManager.
        debounce_seconds: Seconds for which a node must be idle before it counts.
        pools: Pool of each node.
    """

    title: str
    steps: Sequence[tuple[float, Do]]
    journal: str
    refusals: str = ""
    end: float = 200.0
    max_parallel: int = 4
    plan_seconds: float = 0.0
    debounce_seconds: float = 0.0
    pools: Mapping[str, str] = field(default_factory=dict)


def run_script(script: Script, *, every_tick: bool = False) -> tuple[str, str]:
    """The journal and the refusals of a script; JobManager's invariants are checked after every stimulus."""
    queue = EventQueue()
    rows: list[JobEvent] = []
    options = ServicesOptions(
        allocator=AllocatorSettings(replan_seconds=0),
        job_manager=JobManagerSettings(max_parallel=script.max_parallel),
        debounce_seconds=script.debounce_seconds,
        plan_seconds=script.plan_seconds,
        validate=True,
        every_tick=every_tick,
    )
    facts = {name: NodeFacts(pool) for name, pool in script.pools.items()}
    services = SimulatedServices(queue, FixedStalls(queue), options, facts=facts, record=rows.extend)
    for time, do in script.steps:
        queue.at(time, partial(do, services))
    run_until(queue, script.end)
    refusals = "\n".join(f"{time:g} {reason}" for time, reason in services.refusals)
    return "\n".join(map(_line, rows)), refusals


def run_until(queue: EventQueue, end: float) -> None:
    """Run all actions before `end`, and let it be `end` then."""
    while queue.next_time < end:
        queue.run_instant()
    queue.now = end


def _line(row: JobEvent) -> str:
    name = NAMES[int(row.job_id[1:]) - 1]
    before = row.from_state or "-"
    return f"{row.unix_seconds:g} {name} {before} {row.to_state} {row.reason_code} {' '.join(row.nodes)}".rstrip()


def lines(text: str) -> list[str]:
    """The rows of a journal as written in a script, without the blanks that align them."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]
