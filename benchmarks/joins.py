"""Joins at any load of the machine: `python benchmarks/joins.py [--jobs 1000] [--nodes 10000] [--events 20]`.

The machines of Allocator and JobManager, the solver and the messages between them are the real ones, and each step of
theirs takes as long as its CPU time was, on a clock that only counts that. Each service does one thing at a time. What
waits for something else takes a fixed time: a message, a transaction, a supervisor that confirms. So the figures say
what a machine with enough free cores would show, and two versions can be compared on one that is busy. Releases are in
here only as far as they hold up plans; `control_loop.py` measures the services themselves.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.arguments import positive
from benchmarks.looping.measuring import Command, NodeEvent, latencies, summary
from malletrain.allocator.explanation.plan_parts import describe
from malletrain.allocator.machine import stimuli as asked
from malletrain.allocator.machine.cluster_cache import CachedProfile
from malletrain.allocator.machine.machine import AllocatorMachine
from malletrain.allocator.machine.node_stays import NodeTimes, StayReport
from malletrain.allocator.machine.recording import RecordedAllocator
from malletrain.allocator.problem.planner import JobCurve
from malletrain.allocator.settings import AllocatorSettings
from malletrain.allocator.solvers.solving import solve
from malletrain.allocator.telemetry.metrics import AllocatorMetrics
from malletrain.allocator.wire import messages
from malletrain.job_manager.machine import effects as commanded
from malletrain.job_manager.machine import stimuli as happened
from malletrain.job_manager.machine.jobs import JobSpec
from malletrain.job_manager.machine.state import ManagerPolicy, ManagerState
from malletrain.job_manager.machine.state_machine import TransactionResult, advance
from malletrain.job_manager.wire import job_message
from malletrain.model.job_state import JobState
from malletrain.model.scaling import ScalingPoint
from malletrain.model.survival_curve import SurvivalCurve
from malletrain.runtime.errors import StalePlanError
from malletrain.runtime.kernel.flight_recorder import FlightRecorder
from malletrain.runtime.kernel.recording import Moment
from malletrain.runtime.node_names import check_assigned_names
from malletrain.v1 import allocator_pb2, job_manager_pb2, resources_pb2

_EPOCH = 1_700_000_000.0
_MESSAGE_SECONDS, _TRANSACTION_SECONDS, _CONFIRM_SECONDS, _START_SECONDS = 0.001, 0.008, 0.1, 0.5
_TICK_SECONDS = 0.5
_SETTLE_SECONDS = 3.0
_SHARE_AWAY = 0.01


class World:
    """The clock that counts CPU time, and what is still to happen.

    Attributes:
        now: Seconds.
        cpu: CPU time of each kind of step, in seconds.
        steps: How many there were.
    """

    def __init__(self) -> None:
        self.now, self.cpu, self.steps = 0.0, defaultdict[str, float](float), Counter[str]()
        self._begun: float | None = None
        self._free = dict.fromkeys(("allocator", "job_manager"), 0.0)
        self._coming: list[tuple[float, int, str, str, Callable[[], object]]] = []
        self._number = itertools.count()

    def after(self, seconds: float, service: str, kind: str, step: Callable[[], object]) -> None:
        """Have a service do something so long after what has been done so far, or when it has time."""
        used = 0.0 if self._begun is None else time.thread_time() - self._begun
        heapq.heappush(self._coming, (self.now + used + seconds, next(self._number), service, kind, step))

    def run(self, until: float) -> None:
        """Let it happen."""
        while self._coming and self._coming[0][0] < until:
            due, number, service, kind, step = heapq.heappop(self._coming)
            if (free := self._free.get(service, due)) > due:
                heapq.heappush(self._coming, (free, number, service, kind, step))
                continue
            self.now, self._begun = due, time.thread_time()
            step()
            seconds, self._begun = time.thread_time() - self._begun, None
            if service in self._free:
                self._free[service] = due + seconds
            self.cpu[f"{service}: {kind}"] += seconds
            self.steps[f"{service}: {kind}"] += 1


class Manager:
    """JobManager and the supervisors of all jobs.

    Attributes:
        commands: What supervisors were told.
    """

    def __init__(self, world: World, jobs: int) -> None:
        self.commands: list[Command] = []
        self.tell: Callable[[bytes], object] = len
        self._world = world
        self._policy = ManagerPolicy(max_parallel=jobs, fair_share_half_life_seconds=604_800.0, meters_usage=True)
        self.state = ManagerState()
        self._running: set[commanded.Effect] = set()

    def apply(self, stimulus: happened.Stimulus) -> TransactionResult:
        """What `Engine.apply` does, without a database."""
        result = advance(self.state, stimulus, _EPOCH + self._world.now, self._policy)
        self.state = result.state
        if result.changed or isinstance(stimulus, happened.PlanReceived):
            told = job_manager_pb2.WatchJobsResponse(
                jobs=map(job_message, result.changed), plan_generation=result.state.generation
            )
            self._world.after(0.0, "job_manager", "tell", lambda: self.tell(told.SerializeToString()))
        for effect in result.effects:
            if effect not in self._running:
                self._running.add(effect)
                wait = 0.0 if isinstance(effect, commanded.ReleaseHosts) else _TRANSACTION_SECONDS
                self._world.after(wait + _MESSAGE_SECONDS, "supervisors", "command", lambda it=effect: self._do(it))
        return result

    def tick(self) -> None:
        """What it does twice a second."""
        self.apply(happened.Ticked())
        self._world.after(_TICK_SECONDS, "job_manager", "tick", self.tick)

    def _do(self, effect: commanded.Effect) -> None:
        job = self.state.jobs.get(effect.job_id)
        if job is None:
            return
        nodes, incarnation, seconds = job.commanded, effect.incarnation, _CONFIRM_SECONDS
        match effect:
            case commanded.ReleaseHosts():
                self._note("release", job.id, effect.nodes)
                nodes = tuple(name for name in job.commanded if name not in effect.nodes)
                released = happened.NodesReleased(job.id, incarnation, effect.nodes)
                self._world.after(_MESSAGE_SECONDS, "job_manager", "released", lambda: self._try(released, effect))
                seconds = 2 * _MESSAGE_SECONDS
            case commanded.StopSupervisor():
                self._note("stop", job.id, nodes)
                ended = happened.SupervisorEnded(job.id, incarnation, happened.Outcome.STOPPED, "stand-in", None, ())
                self._world.after(_CONFIRM_SECONDS, "job_manager", "ended", lambda: self._try(ended, effect))
                return
            case commanded.SetHosts():
                self._note("set", job.id, effect.nodes)
                nodes = effect.nodes
            case commanded.StartSupervisor():
                self._note("start", job.id, nodes)
                seconds = _START_SECONDS
        hosts, sequence = frozenset(nodes), job.sequence
        if isinstance(effect, commanded.SetHosts):
            taken = happened.SupervisorSeen(
                job.id, incarnation, sequence, job.taken_sequence, frozenset(job.confirmed), hosts
            )
            self._world.after(_MESSAGE_SECONDS, "job_manager", "seen", lambda: self._try(taken, effect))
        seen = happened.SupervisorSeen(job.id, incarnation, sequence, sequence, hosts, hosts)
        self._world.after(seconds, "job_manager", "seen", lambda: self._try(seen))

    def _try(self, stimulus: Any, done: commanded.Effect | None = None) -> None:
        self._running -= {done, *(self._started(stimulus) if isinstance(stimulus, happened.SupervisorEnded) else ())}
        if stimulus.job_id in self.state.jobs:
            self.apply(stimulus)

    def _started(self, ended: happened.SupervisorEnded) -> set[commanded.Effect]:
        return {commanded.StartSupervisor(ended.job_id, ended.incarnation)}

    def _note(self, kind: str, job_id: str, nodes: Iterable[str]) -> None:
        self.commands.append(Command(self._world.now, kind, job_id, frozenset(nodes)))

    def take_plan(self, message: bytes, answer: Callable[[asked.PlanAnswered], object]) -> None:
        """What `JobManagerService.ApplyPlan` does."""
        request, jobs = job_manager_pb2.ApplyPlanRequest.FromString(message), self.state.jobs
        parts = []
        for entry in request.assignments:
            job, nodes = jobs.get(entry.job_id), tuple(entry.nodes)
            kept = job is not None and nodes == job.wanted
            parts.append((entry.job_id, job.wanted if job and kept else check_assigned_names(nodes, "nodes")))
        try:
            result = self.apply(happened.PlanReceived(request.generation, tuple(parts), request.partial))
        except StalePlanError as error:
            found = asked.PlanAnswered(asked.PlanOutcome.REFUSED, str(error))
        else:
            omissions = tuple(entry.reason for entry in result.omitted)
            found = asked.PlanAnswered(asked.PlanOutcome.APPLIED, omissions=omissions, rescaled=bool(result.rescaled))
        self._world.after(
            _TRANSACTION_SECONDS + _MESSAGE_SECONDS, "allocator", "answered, plan described", lambda: answer(found)
        )


class Allocator:
    """The Allocator's machine, driven as `allocator/loop.py` does.

    Attributes:
        since: Since when each node is idle, in seconds since the epoch.
        plans: Outcomes of plans, counted.
    """

    def __init__(self, world: World, manager: Manager, folder: Path) -> None:
        self.since: dict[str, float] = {}
        self.plans = Counter[str]()
        self._settings = AllocatorSettings()
        self._world, self._manager = world, manager
        self._machine = AllocatorMachine(self._settings.machine_options)
        self._recorder = FlightRecorder(folder, RecordedAllocator(), False, min_stimuli=300)
        self._metrics = AllocatorMetrics()
        steps = [10.0 * number for number in range(1, 200)]
        self._curve = SurvivalCurve.of_steps(steps, [0.995**number for number in range(1, 200)], 0.001)
        self._told: set[str] = set()
        self._looking = -1.0

    def apply(self, stimulus: asked.Stimulus) -> None:
        """Tell the machine, and do what it wants done."""
        now = Moment(_EPOCH + self._world.now, self._world.now)
        for effect in self._recorder.advance(self._machine, stimulus, now):
            match effect:
                case asked.AskPeers():
                    self._world.after(2 * _MESSAGE_SECONDS, "allocator", "stays taken over", self._answer_stays)
                case asked.Solve():
                    self._world.after(0.0, "allocator", "solve", lambda it=effect: self._solve(it))
                case asked.ApplyPlan():
                    self._world.after(0.0, "allocator", "send the plan", lambda it=effect: self._send(it))
                case asked.FinishPlan():
                    self._finish(effect)
        if self._machine.due_at < float("inf") and self._machine.due_at != self._looking:
            self._looking = self._machine.due_at
            self._world.after(max(0.0, self._looking - self._world.now), "allocator", "due", self._look)

    def _look(self) -> None:
        if self._machine.due_at <= self._world.now + 1e-9:
            self._looking = -1.0
            self.apply(asked.Due())

    def see_jobs(self, message: bytes, *, snapshot: bool = False) -> None:
        """JobManager tells of jobs."""
        told = job_manager_pb2.WatchJobsResponse.FromString(message)
        self.apply(asked.JobsReported(tuple(map(messages.job_from_proto, told.jobs)), snapshot, told.plan_generation))

    def _answer_stays(self) -> None:
        new = self.since.keys() - self._told
        nodes = {name: NodeTimes(self.since[name], None, "", 0) for name in self.since if name in new}
        first, self._told = not self._told, set(self.since)
        curve = self._curve if first else None
        report = StayReport("token", _EPOCH + self._world.now, 3600.0, not first, curve, first, nodes)
        self.apply(asked.PeersAnswered(report))

    def _solve(self, effect: asked.Solve) -> None:
        formulation, seconds = self._settings.formulation, self._settings.time_limit_seconds
        solved = asked.Solved(tuple(solve(problem, formulation, seconds) for problem in effect.problems))
        self._world.after(0.0, "allocator", "solution taken over", lambda: self.apply(solved))

    def _send(self, effect: asked.ApplyPlan) -> None:
        parts = map(messages.assignment_to_proto, effect.parts)
        request = job_manager_pb2.ApplyPlanRequest(
            generation=effect.plan.generation, assignments=parts, partial=True
        ).SerializeToString()
        self._world.after(
            _MESSAGE_SECONDS, "job_manager", "apply a plan", lambda: self._manager.take_plan(request, self.apply)
        )

    def _finish(self, effect: asked.FinishPlan) -> None:
        plan, answer = effect.plan, effect.answer
        message = allocator_pb2.Plan(generation=plan.generation)
        describe(message, plan.planning.plan_input, plan.problem, plan.allocation, plan.decisions)
        self._metrics.note_plan(plan.generation, plan.problem.whole, plan.allocation, answer.outcome)
        json.dumps({entry.job_id: len(entry.nodes) for entry in plan.allocation.assignments})
        self.plans["in part" if answer.omissions else answer.outcome.value] += 1
        self._world.after(0.0, "allocator", "pack the plan", message.SerializeToString)


def measured(jobs: int, nodes: int, events: float, seconds: float) -> dict[str, Any]:
    """What `main` prints."""
    world, rng = World(), random.Random(1)
    manager, names = Manager(world, jobs), [f"n{number:05d}" for number in range(nodes)]
    largest = max(2, 2 * nodes // jobs)
    curve = tuple(ScalingPoint(count, 100.0 * count**0.9) for count in range(1, largest + 1, max(1, largest // 500)))
    away = names[-max(1, int(nodes * _SHARE_AWAY)) :]
    told: list[NodeEvent] = []
    with tempfile.TemporaryDirectory() as folder:
        allocator = Allocator(world, manager, Path(folder))
        allocator.since = dict.fromkeys(names[: -len(away)], _EPOCH - 100.0)
        manager.apply(happened.IdleSetSeen(frozenset(allocator.since)))
        manager.apply(
            happened.Submitted(
                (JobSpec(name="job", command=("true",), working_directory="/", min_nodes=1, max_nodes=largest),) * jobs,
                "ada",
            )
        )
        present = [messages.node_from_proto(resources_pb2.Node(name=name)) for name in allocator.since]
        allocator.apply(asked.NodesReported(tuple(present), (), snapshot=True))
        first = job_manager_pb2.WatchJobsResponse(jobs=map(job_message, manager.state.jobs.values()))
        allocator.see_jobs(first.SerializeToString(), snapshot=True)
        profiles = (CachedProfile(job_id, JobCurve(curve, 2.0, 2.0)) for job_id in manager.state.jobs)
        allocator.apply(asked.ProfilesReported(tuple(profiles)))
        manager.tell = lambda message: world.after(
            _MESSAGE_SECONDS, "allocator", "see jobs", lambda: allocator.see_jobs(message)
        )
        manager.tick()

        def happen(name: str, joined: bool) -> None:
            (allocator.since.__setitem__(name, _EPOCH + world.now) if joined else allocator.since.pop(name))
            one, nobody = frozenset((name,)), frozenset[str]()
            change = happened.NodesChanged(*((one, nobody) if joined else (nobody, one)), _EPOCH + world.now)
            node = (messages.node_from_proto(resources_pb2.Node(name=name)),)
            seen = asked.NodesReported(node) if joined else asked.NodesReported((), (name,))
            told.append(NodeEvent(world.now, name, joined))
            world.after(_MESSAGE_SECONDS, "job_manager", "see nodes", lambda: manager.apply(change))
            world.after(_MESSAGE_SECONDS, "allocator", "see nodes", lambda: allocator.apply(seen))

        begin = _SETTLE_SECONDS
        while any(job.state is not JobState.RUNNING for job in manager.state.jobs.values()):
            world.run(begin := begin + _SETTLE_SECONDS)
        world.run(begin := begin + _SETTLE_SECONDS)
        idle = set(allocator.since)
        for number in range(int(seconds * events)):
            if number % 2 == 0:
                name = rng.choice(sorted(idle))
                idle.remove(name)
                away.append(name)
            else:
                name = away.pop(0)
                idle.add(name)
            joined = number % 2 == 1
            wait = begin - world.now + number / events
            world.after(wait, "scavenger", "event", lambda a=name, b=joined: happen(a, b))
        gc.collect()
        gc.freeze()
        world.cpu.clear()
        world.steps.clear()
        allocator.plans.clear()
        world.run(begin + seconds)
        cpu, steps, plans = dict(world.cpu), dict(world.steps), dict(allocator.plans)
        world.run(begin + seconds + 5.0)
    found = latencies(told, manager.commands)
    return {
        "jobs": jobs,
        "nodes": nodes,
        "events_per_second": events,
        "leave_to_release": summary(found.releases),
        "join_to_command": summary(found.commands),
        "join_to_node_given": summary(found.growths),
        "joined_and_unused": found.idle,
        "plans": plans,
        "cores": {name: round(value / seconds, 3) for name, value in sorted(_by_service(cpu).items())},
        "steps": {
            kind: {"count": steps[kind], "mean_ms": round(1000 * value / steps[kind], 2)}
            for kind, value in sorted(cpu.items())
            if not kind.startswith(("supervisors", "scavenger"))
        },
    }


def _by_service(cpu: dict[str, float]) -> dict[str, float]:
    return {
        name: sum(seconds for kind, seconds in cpu.items() if kind.startswith(f"{name}:"))
        for name in ("allocator", "job_manager")
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=positive, default=1000)
    parser.add_argument("--nodes", type=positive, default=10_000)
    parser.add_argument("--events", type=float, default=20.0, help="leaves and joins a second, together")
    parser.add_argument("--seconds", type=positive, default=60, help="how long is measured")
    options = parser.parse_args()
    print(json.dumps(measured(options.jobs, options.nodes, options.events, options.seconds), indent=1))


if __name__ == "__main__":
    main()
