"""Runs the five services with stand-ins for supervisors and trainings."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.control_loop import make_trace, running
from benchmarks.journaling.reporters import GROWTH_S, RATE, READY, SHRINK_S, rate
from benchmarks.looping.stand_ins import STARTS, make_python
from malletrain.caller.credentials import owner_credential
from malletrain.cli.demo.setup import free_ports
from malletrain.cli.shared.settings import load
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.common.environment import JOB_DIR
from malletrain.common.processes import find_processes
from malletrain.runtime.settings_file import SERVICES
from malletrain.scavenger.trace_files import write_trace
from malletrain.v1 import job_manager_pb2, resources_pb2

_FIRST_S = 20.0
_PATIENCE_S = 240.0


def write_settings(folder: Path, allocator: str = "forward_seconds = 60") -> Path:
    """The configuration of the five services; `allocator` are lines of the section of that name."""
    addresses = "\n".join(f'{name} = "127.0.0.1:{port}"' for name, port in zip(SERVICES, free_ports(), strict=True))
    config = folder / "malletrain.toml"
    config.write_text(
        f'state_dir = "{folder}"\n[addresses]\n{addresses}\n[allocator]\n{allocator}\n'
        f'[scavenger]\nsource = "trace"\ntrace = "{folder / "trace.csv"}"\ndebounce_seconds = 0\n'
        f'[job_manager]\nmax_parallel = 3\ntrainer_python = "{make_python(folder)}"\nstandby_memory_mib = 0\n'
    )
    return config


def specs(jobs: int, most_nodes: int, seconds: float) -> list[resources_pb2.JobSpec]:
    """Jobs of which the last two have no target."""
    curve = [resources_pb2.ScalingPoint(nodes=count, rate=rate(count)) for count in range(1, most_nodes + 1)]
    return [
        resources_pb2.JobSpec(
            name="stand-in",
            command=["/bin/true"],
            working_directory="/",
            min_nodes=1,
            max_nodes=most_nodes,
            curve=curve,
            scale_up_seconds=GROWTH_S,
            scale_down_seconds=SHRINK_S,
            target_samples=round(RATE * seconds) if number < jobs - 2 else 0,
            profile=resources_pb2.PROFILE_MODE_NEVER,
        )
        for number in range(jobs)
    ]


@contextmanager
def _without_leftovers(folder: Path) -> Iterator[None]:
    """At the end no process of a job is left."""
    try:
        yield
    finally:
        jobs = str(folder / "jobs")
        for process in find_processes(lambda found: found.get(JOB_DIR, "").startswith(jobs)):
            process.id.kill()


def _wait(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not done():
        if time.monotonic() > deadline:
            sys.exit(f"{what} did not begin within {_PATIENCE_S:g} s")
        time.sleep(0.05)


def record(
    folder: Path,
    nodes: int,
    jobs: int,
    events_per_second: float,
    seconds: float,
    until: Callable[[ServiceStubs], None],
    allocator: str = "forward_seconds = 60",
) -> Path:
    """Let the services run with jobs and with nodes that come and go.

    Args:
        folder: An empty folder: the state folder.
        nodes: Number of nodes.
        jobs: Number of jobs; three train at once.
        events_per_second: Leaves and joins, together.
        seconds: About how long it will take; sets how many samples the jobs have to process.
        until: Called once jobs are submitted; returns when it has been long enough.
        allocator: Lines of the Allocator's section of the settings.

    Returns:
        The file of the settings.
    """
    write_trace(make_trace(nodes, _FIRST_S, 2 * seconds + 60, events_per_second), folder / "trace.csv")
    config = write_settings(folder, allocator)
    with ExitStack() as stack:
        stack.enter_context(_without_leftovers(folder))
        stack.enter_context(running(folder, "-m", "benchmarks.looping.stand_ins", str(folder)))
        _wait((folder / STARTS).exists, "the stand-ins")
        stack.enter_context(running(folder, "-m", "malletrain.cli.main", "up", "--config", str(config)))
        _wait(lambda: "stop with Ctrl-C" in (folder / "main.log").read_text(), "the services")
        stack.enter_context(
            running(folder, "-m", "benchmarks.journaling.reporters", str(folder), str(config), str(jobs))
        )
        _wait((folder / READY).exists, "the trainings")
        settings = load(config)
        stubs = ServiceStubs(settings, owner_credential(settings))
        request = job_manager_pb2.SubmitJobsRequest(specs=specs(jobs, nodes - 2, seconds))
        stubs.job_manager.SubmitJobs(request, timeout=30)
        until(stubs)
    return config
