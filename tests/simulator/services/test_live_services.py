"""One journal, lived through by the services and replayed by the services engine: the same plans, one by one.

The live ones run in this process, on servers of their own (`live.py`). What remains different is in docs/replay.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from malletrain.allocator.history.idle_history import IdleRow
from malletrain.allocator.machine.stimuli import Plan, PlanAnswered, PlanOutcome
from malletrain.allocator.settings import AllocatorSettings
from malletrain.job_manager.machine.jobs import Job, job_id
from malletrain.job_manager.settings import JobManagerSettings
from malletrain.model.scaling import ScalingPoint
from malletrain.simulator.journal.conversion import ENDLESS_SAMPLES, idle_trace
from malletrain.simulator.replay.job_set import ReplayJob
from malletrain.simulator.replay.node_events import node_events
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.services.engine import run_services_replay
from malletrain.simulator.services.simulated_services import ServicesOptions
from malletrain.v1 import allocator_pb2, profiler_pb2, resources_pb2
from tests.simulator.services.live import LiveServices, SlowSupervisor, live_services
from tests.support.builders import spec_message
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.processes

BOOT_S, UP_S, DOWN_S, FORWARD_S = 1.0, 0.3, 0.2, 120.0
ALLOCATOR = AllocatorSettings(forward_seconds=FORWARD_S, replan_seconds=0)
MAX_PARALLEL = 6
NODES = tuple(f"n{number}" for number in range(1, 10))
CURVES = {
    # What a fourth node adds is worth the stall, but not that and a boot.
    "a": (100.0, 190.0, 270.0, 270.0 + 270.0 * UP_S / (FORWARD_S - BOOT_S / 2)),
    "b": (50.0, 95.0),
    "c": (30.0,),
    "d": (20.0,),
}
"""Samples/s on one node, two, and so on."""
FIRST = job_id(1)


@dataclass(frozen=True)
class MadePlan:
    """A plan and what came of it.

    Attributes:
        generation: Its number.
        trigger: What led to it, in words.
        nodes: Nodes of each job that gets some, by identifier.
        outcome: "applied", "in part" or "refused".
    """

    generation: int
    trigger: str
    nodes: Mapping[str, frozenset[str]]
    outcome: str


@dataclass(frozen=True)
class Past:
    """What the live services have recorded.

    Attributes:
        rows: Changes of the idle set.
        jobs: In the order of submission.
        plans: Oldest first.
        arrivals: When plans arrived at JobManager, in seconds since the epoch, by generation.
        end: When it ended, in seconds since the epoch.
        compared: How many of the plans are the engine's, too: those before the first job lost all its nodes.
    """

    rows: Sequence[IdleRow]
    jobs: Sequence[Job]
    plans: Sequence[allocator_pb2.Plan]
    arrivals: Mapping[int, float]
    end: float
    compared: int


def points(name: str) -> tuple[ScalingPoint, ...]:
    return tuple(ScalingPoint(nodes, rate) for nodes, rate in enumerate(CURVES[name], 1))


def submitted(name: str) -> resources_pb2.JobSpec:
    return spec_message("true", name=name, max_nodes=len(CURVES[name]), profile=resources_pb2.PROFILE_MODE_NEVER)


def known_profiles() -> list[profiler_pb2.Profile]:
    return [
        profiler_pb2.Profile(
            job_id=job_id(number),
            points=[profiler_pb2.ProfilePoint(nodes=point.nodes, rate=point.rate) for point in points(name)],
            scale_up_seconds=UP_S,
            scale_down_seconds=DOWN_S,
        )
        for number, name in enumerate(CURVES, 1)
    ]


async def live_through(live: LiveServices) -> Past:
    """Joins, leaves, submissions, growths whose workers boot, and a plan of which a part comes too late."""
    idle = set(NODES[:2])

    def move(joined: str = "", left: str = "") -> None:
        idle.difference_update(left.split())
        idle.update(joined.split())
        live.source.set_idle(*sorted(idle))

    await live.settle(1)
    await live.submit(submitted("a"))
    await live.settle(2)
    move(joined="n3")  # a grows, and its new worker boots
    await live.settle(3)
    move(joined="n4")  # it does not grow again: it is known by now how long that takes
    await live.settle(4)
    await live.submit(submitted("b"))
    await live.settle(5)
    move(joined="n5 n6")
    await live.settle(6)
    move(left="n1")
    await live.settle(7)
    await live.submit(submitted("c"), submitted("d"))
    await live.settle(8)
    live.manager.gate.clear()
    move(joined="n7 n8 n9")  # for c and d
    await wait_until_async(lambda: live.manager.waiting, 60, "a plan on its way to JobManager")
    move(left="n7")
    await wait_until_async(lambda: "n7" not in (live.state.idle or ()), 60, "JobManager knows that a node has left")
    live.manager.gate.set()
    await live.settle(10)
    move(joined="n1", left="n3")
    await live.settle(11)
    compared = live.machine.generation
    move(left="n4 n5")  # all that b has: its processes end
    await live.settle(compared + 1)
    move(joined="n4 n5")
    await live.settle(compared + 2)
    await live.store()
    return Past(
        live.idle_rows(), tuple(live.state.jobs.values()), live.plans(), live.manager.arrivals, live.now, compared
    )


def made(message: allocator_pb2.Plan) -> MadePlan:
    nodes = {entry.job_id: frozenset(entry.nodes) for entry in message.allocation.assignments if entry.nodes}
    outcome = "refused" if not message.applied else "in part" if message.omissions else "applied"
    return MadePlan(message.generation, message.trigger, nodes, outcome)


def replay(past: Past, boot_s: float) -> tuple[list[MadePlan], list[Mapping[str, float]]]:
    """The plans of the services engine, and how long each reckons that jobs boot, in seconds."""
    begin = past.rows[0].unix_seconds
    trace = idle_trace(past.rows, begin, past.end)
    jobs = [
        ReplayJob(
            id=job.id,
            model=job.spec.name,
            submit_s=job.create_time - begin,
            scale_up_s=UP_S,
            scale_down_s=DOWN_S,
            min_nodes=1,
            max_nodes=len(CURVES[job.spec.name]),
            samples=ENDLESS_SAMPLES,
            curve=points(job.spec.name),
            boot_s=boot_s,
        )
        for job in past.jobs
    ]
    # That plan was held back. The engine makes its own at the end of the time for events that come together.
    held_back = next(plan.generation for plan in past.plans if plan.omissions)
    joined = next(row.unix_seconds for row in past.rows if "n7" in row.joined)
    settings = ServicesOptions(
        allocator=ALLOCATOR,
        job_manager=JobManagerSettings(max_parallel=MAX_PARALLEL),
        late_plans={held_back: past.arrivals[held_back] - joined - ALLOCATOR.coalesce_seconds},
        validate=True,
    )
    plans, boots = list[MadePlan](), list[Mapping[str, float]]()

    def note(_: float, plan: Plan, answer: PlanAnswered) -> None:
        nodes = {entry.job_id: frozenset(entry.nodes) for entry in plan.allocation.assignments if entry.nodes}
        applied = "in part" if answer.omissions else "applied"
        outcome = applied if answer.outcome is PlanOutcome.APPLIED else "refused"
        plans.append(MadePlan(plan.generation, plan.reason, nodes, outcome))
        boots.append({job.id: job.boot_seconds for job in plan.problem.whole.jobs})

    options = ReplayOptions(duration_s=trace.duration_s, forward_s=FORWARD_S, max_parallel=MAX_PARALLEL)
    events = node_events(trace, trace.duration_s)
    run_services_replay(events, trace.nodes, jobs, options, settings=settings, on_plan=note)
    return plans, boots


def is_part_in_order(part: Sequence[object], whole: Sequence[object]) -> bool:
    rest = iter(whole)
    return all(any(one == other for other in rest) for one in part)


async def test_the_services_engine_makes_the_plans_of_the_live_services(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("boot_s", BOOT_S), ("up_s", UP_S), ("down_s", DOWN_S)):
        monkeypatch.setattr(SlowSupervisor, name, seconds)
    settings = {"max_parallel": MAX_PARALLEL}
    async with live_services(tmp_path, monkeypatch, NODES, NODES[:2], known_profiles(), ALLOCATOR, settings) as live:
        past = await live_through(live)
    lived, end = [made(message) for message in past.plans], past.compared
    plans, boots = replay(past, BOOT_S)
    assert [plan.outcome for plan in lived[:end]].count("in part") == 1
    assert plans[:end] == lived[:end]

    # From the plan after its first growth on, both reckon with what its workers have taken.
    grown = [{job.id: job.boot_seconds for job in plan.problem.jobs}[FIRST] for plan in past.plans[3:end]]
    assert [entry[FIRST] for entry in boots[3:end]] == pytest.approx([BOOT_S] * (end - 3))
    assert all(BOOT_S <= seconds < FORWARD_S / 2 for seconds in grown), grown
    assert replay(past, 0.0)[0][3] == replace(lived[3], nodes={FIRST: frozenset(NODES[:4])}), "boots decide here"

    # While the processes of a job end, live plans leave it out: there are more of them, on the way to the same.
    assert is_part_in_order([plan.nodes for plan in plans[end:]], [plan.nodes for plan in lived[end:]])
    assert plans[-1].nodes == lived[-1].nodes


@pytest.mark.parametrize(("part", "expected"), [("", True), ("ac", True), ("abc", True), ("ca", False), ("d", False)])
def test_what_is_left_out_is_a_part_in_order(part: str, expected: bool) -> None:
    assert is_part_in_order(part, "abc") is expected
