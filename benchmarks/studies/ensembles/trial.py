"""One training of the ensemble, with real services and processes of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.studies.ensembles.networks import NODES, SIZE, TRAINER, Network, ensemble_file
from benchmarks.studies.ensembles.results import EnsembleRun, MemberResult, positions_apart
from malletrain.cli.demo.setup import free_ports
from malletrain.cli.jobs.naming import members_of
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs
from malletrain.runtime.messages import FINAL_JOB_STATES
from malletrain.v1 import allocator_pb2, fleet_pb2, resources_pb2
from tests.system.deployment import Deployment, deployed

_LOOK_SECONDS = 0.25
_END_SECONDS = 20.0
_START_SECONDS = 90.0
_PRODUCER = Path(__file__).with_name("producer.py")


@dataclass(frozen=True)
class Way:
    """A way of training the ensemble.

    Attributes:
        planner: Who divides the GPUs.
        feed: Whether members share a feed.
        socket: Whether samples come from TensorSocket.
    """

    planner: str
    feed: bool = True
    socket: bool = False

    @property
    def possible(self) -> bool:
        """Whether what it needs is installed."""
        return not self.socket or importlib.util.find_spec("tensorsocket") is not None


WAYS = {
    "fleet": Way("fleet"),
    "makespan": Way("makespan"),
    "list": Way("list"),
    "milp": Way("milp"),
    "auto": Way("auto"),
    "no-feed": Way("auto", feed=False),
    "list-no-feed": Way("list", feed=False),
    "tensorsocket": Way("auto", feed=False, socket=True),
    "list-tensorsocket": Way("list", feed=False, socket=True),
}


@dataclass(frozen=True)
class EnsembleTrial:
    """What all trainings have in common.

    Attributes:
        networks: The members.
        preprocess_rate: Samples per second that all CPUs together prepare.
        workers: Processes of each feed, DataLoader and producer.
        kept: Samples that a feed keeps.
        side: Of the pictures before they are cropped, in pixels.
        test: File with the pictures on which members are tested.
        max_seconds: How long a training may take.
    """

    networks: tuple[Network, ...]
    preprocess_rate: float
    workers: int
    kept: int
    side: int
    test: Path
    max_seconds: float


def run_trial(trial: EnsembleTrial, variant: str, folder: Path) -> EnsembleRun:
    """Train the ensemble in one way, in a folder that does not exist.

    Raises:
        RuntimeError: a member fails.
        TimeoutError: it takes too long.
    """
    way = WAYS[variant]
    folder.mkdir(parents=True)
    log = folder / "prepared.log"
    log.touch()
    environment = {
        "OMP_NUM_THREADS": "1",
        "MALLETRAIN_FEED_FOLDER": f"{folder}/feeds/{{node}}",
        "ENSEMBLE_LOG": str(log),
        "ENSEMBLE_TEST": str(trial.test),
        "ENSEMBLE_WORKERS": str(trial.workers),
        "ENSEMBLE_KEPT": str(trial.kept),
        "ENSEMBLE_SIDE": str(trial.side),
    }
    left: list[psutil.Process] = []
    with _all_ended(folder, left), deployed(folder / "state", _settings()) as system:
        _warm_up(system, environment)
        with _producer(way, trial, log) as ports:
            environment |= {"ENSEMBLE_SOCKET": ports} if ports else {}
            path = folder / "ensemble.toml"
            path.write_text(ensemble_file(trial.networks, way.planner, trial.preprocess_rate, environment))
            jobs, counts, planners = _train(system, path, way, trial)
    costs = [float(line.split()[1]) for line in log.read_text().splitlines()]
    begin = min(_seconds(job.create_time) for job in jobs)
    members = tuple(_member(job, begin) for job in jobs)
    _check(members, trial.networks)
    return EnsembleRun(
        variant,
        round(max(member.seconds for member in members), 2),
        len(costs),
        round(sum(costs), 2),
        round(counts.at_once, 2),
        sum(job.rescales for job in jobs),
        tuple(planners),
        len(left),
        members,
        round(counts.together, 2),
    )


def _settings() -> str:
    nodes = [f"n{number}" for number in range(1, NODES + 1)]
    return f"""
[scavenger]
source = "static"
nodes = {json.dumps(nodes)}
debounce_seconds = 0
[job_manager]
trainer_python = "{sys.executable}"
standby_memory_mib = 1500
"""


def _warm_up(system: Deployment, environment: dict[str, str]) -> None:
    """Wait until a training that does nothing has ended: imports are done then, as where others have trained before."""
    variables = [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
    command = ["submit", "--max", "1", "--backend", "torchrun", "--profile", "never", "--wait", *variables]
    done = system.command(*command, "--", "python", str(TRAINER), "--epochs", "0", timeout=_START_SECONDS)
    if done.returncode != 0:
        raise RuntimeError(f"a training that does nothing failed: {done.stdout}{done.stderr}")


@contextmanager
def _producer(way: Way, trial: EnsembleTrial, log: Path) -> Iterator[str]:
    """TensorSocket's producer where it is wanted; its ports."""
    if not way.socket:
        yield ""
        return
    ports = ",".join(map(str, free_ports()[:4]))
    with (log.parent / "producer.log").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, str(_PRODUCER), str(log), str(trial.side), str(trial.workers), ports],
            cwd=log.parent,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield ports
    finally:
        process.kill()
        process.wait()


@dataclass
class _Counts:
    """How many members trained, over time.

    Attributes:
        seconds: How long.
        members: Members that trained, times seconds.
        groups: Groups of these at about one position, times seconds.
    """

    seconds: float = 0.0
    members: float = 0.0
    groups: float = 0.0

    def add(self, seconds: float, positions: list[int], near: int) -> None:
        """For so long, members trained at these positions."""
        self.seconds += seconds
        self.members += seconds * len(positions)
        self.groups += seconds * positions_apart(positions, near)

    @property
    def at_once(self) -> float:
        """Members that trained at once, on average."""
        return self.members / self.seconds

    @property
    def together(self) -> float:
        """Members at about one position, on average."""
        return self.members / max(self.groups, 1e-9)


def _train(
    system: Deployment, path: Path, way: Way, trial: EnsembleTrial
) -> tuple[list[resources_pb2.Job], _Counts, list[str]]:
    """Train the ensemble; its jobs, how many members trained at once, and who divided the GPUs."""
    options = [] if way.feed else ["--no-feed"]
    done = system.command("fleet", "submit", str(path), *options, "--json")
    if done.returncode != 0:
        raise RuntimeError(f"the ensemble was refused: {done.stderr}")
    fleet_id = json.loads(done.stdout)["fleetId"]
    stubs = system.stubs
    try:
        return _follow(stubs, fleet_id, time.monotonic() + trial.max_seconds, trial.kept)
    finally:
        stubs.close()


def _follow(
    stubs: ServiceStubs, fleet_id: str, deadline: float, near: int
) -> tuple[list[resources_pb2.Job], _Counts, list[str]]:
    planners: list[str] = []
    counts = _Counts()
    before = time.monotonic()
    while True:
        jobs = members_of(stubs, fleet_id)
        now = time.monotonic()
        running = [job.samples for job in jobs if job.state == resources_pb2.JOB_STATE_RUNNING]
        counts.add(now - before, running, near)
        before = now
        for name in _dividers(stubs, fleet_id):
            planners += [name] if planners[-1:] != [name] else []
        if all(job.state in FINAL_JOB_STATES for job in jobs):
            return jobs, counts, planners
        if now > deadline:
            states = {job.spec.name: resources_pb2.JobState.Name(job.state) for job in jobs}
            raise TimeoutError(f"the ensemble takes too long: {states}")
        time.sleep(_LOOK_SECONDS)


def _dividers(stubs: ServiceStubs, fleet_id: str) -> list[str]:
    plan = stubs.allocator.GetPlan(allocator_pb2.GetPlanRequest(), timeout=DEADLINE_SECONDS).plan
    found = [decision.planner for decision in plan.fleets if decision.fleet_id == fleet_id]
    return [fleet_pb2.FleetPlanner.Name(planner).removeprefix("FLEET_PLANNER_").lower() for planner in found]


def _member(job: resources_pb2.Job, begin: float) -> MemberResult:
    if job.state != resources_pb2.JOB_STATE_COMPLETED:
        raise RuntimeError(f"{job.spec.name}: {resources_pb2.JobState.Name(job.state)} ({job.reason})")
    # On a machine that is overloaded, one may be ended at max_epochs before it has said how it does.
    loss, accuracy = (job.metrics.get(name, math.nan) for name in ("test_loss", "test_accuracy"))
    seconds = round(_seconds(job.end_time) - begin, 2)
    return MemberResult(job.spec.name, seconds, job.samples, loss, accuracy)


def _check(members: Sequence[MemberResult], networks: Sequence[Network]) -> None:
    """Nobody has trained less.

    Raises:
        RuntimeError: one has.
    """
    for member, network in zip(members, networks, strict=True):
        if member.samples < network.epochs * SIZE:
            raise RuntimeError(f"{member.name}: {member.samples} samples of {network.epochs * SIZE}")


def _seconds(time_of: Any) -> float:
    return float(time_of.seconds + time_of.nanos / 1e9)


@contextmanager
def _all_ended(folder: Path, left: list[psutil.Process]) -> Iterator[None]:
    """Wait for all processes of a run to end, and kill those that do not, which `left` has then."""
    try:
        yield
    finally:
        _, alive = psutil.wait_procs(_processes_of(folder), timeout=_END_SECONDS)
        left += {*alive, *_processes_of(folder)}
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=_END_SECONDS)


def _processes_of(folder: Path) -> list[psutil.Process]:
    """Living processes that name the folder in their words, variables or working directory."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = [*process.cmdline(), *process.environ().values(), process.cwd()]
            if process.status() != psutil.STATUS_ZOMBIE and any(word.startswith(str(folder)) for word in words):
                found.append(process)
    return found
