"""How services answer others while one caller floods them: `python benchmarks/floods.py [--seconds 20]`.

Five real services and a job on virtual nodes. Beside each flood of tests/hostile, which is a process of its own, GetJob
and the release of a node with a worker are timed: median and 99th percentile (of less than a hundred, the largest), and
as ratios to the same without a flood in the same run. Memory is PSS in MiB: before, the largest during, and after the
flood, once it has settled.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.arguments import positive
from benchmarks.flooding.attacker import FLOODS
from benchmarks.flooding.measuring import NODE, Seen, has_node, measured, median_ms, memory_of, p99_ms
from malletrain.cli.shared.settings import load
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.runtime.access.credentials import FixedToken
from malletrain.runtime.access.identity import Role
from malletrain.runtime.access.installation import open_installation
from malletrain.runtime.clock import SystemClock
from malletrain.v1 import job_manager_pb2, resources_pb2
from tests.hostile.floods import REPORTED_JOB, spec
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

ROOT = Path(__file__).parent.parent
SETTINGS = f"""
[allocator]
coalesce_seconds = 0.1
[job_manager]
max_parallel = 1
[scavenger]
source = "static"
nodes = ["{NODE}"]
debounce_seconds = 0
"""
FILES = 20_000
_SETTLE_SECONDS = 12.0
_PATIENCE_SECONDS = 60.0


def submit(system: Deployment, user: str, job: resources_pb2.JobSpec) -> str:
    """Submit a job as a user with a token."""
    with closing(ServiceStubs(load(system.config), FixedToken(token_of(system, user)))) as stubs:
        request = job_manager_pb2.SubmitJobsRequest(specs=[job])
        return str(stubs.job_manager.SubmitJobs(request, timeout=_PATIENCE_SECONDS).jobs[0].id)


def token_of(system: Deployment, user: str, role: Role = Role.USER, job: str = "") -> str:
    """A token for a quarter of an hour."""
    return open_installation(load(system.config), SystemClock()).tokens.sign(user, role, 900, job)[0]


def training() -> resources_pb2.JobSpec:
    """Takes a node at once, and leaves it at once."""
    return resources_pb2.JobSpec(
        name="measured",
        command=["sleep", "100000"],
        working_directory="/",
        min_nodes=1,
        max_nodes=1,
        curve=[resources_pb2.ScalingPoint(nodes=1, rate=1.0)],
        scale_up_seconds=0.1,
        scale_down_seconds=0.1,
        backend=resources_pb2.LAUNCHER_BACKEND_COMMAND,
    )


def write_logs(system: Deployment, job_id: str) -> None:
    """Give a job a log of many files."""
    logs = system.folder / "jobs" / job_id / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    for number in range(FILES):
        (logs / f"n{number}.log").write_text("a line\n")


def row(name: str, seen: Seen, without: Seen) -> str:
    """Times of one flood."""
    cells = [name]
    for found, base in ((seen.get, without.get), (seen.release, without.release)):
        cells += [f"{median_ms(found):.1f} ({median_ms(found) / median_ms(base):.1f})"]
        cells += [f"{p99_ms(found):.0f} ({p99_ms(found) / p99_ms(base):.1f})", str(len(found))]
    return " | ".join([*cells, str(seen.failed)])


def flooded(system: Deployment, name: str, job_id: str, log_job: str, seconds: float) -> tuple[Seen, int]:
    """What is seen during a flood, and how often it went through."""
    reports = "reports" in name
    token = token_of(system, REPORTED_JOB, Role.JOB, REPORTED_JOB) if reports else token_of(system, "mallory")
    command = [sys.executable, "-m", "benchmarks.flooding.attacker", str(system.config), name, token, log_job]
    with tempfile.TemporaryFile("w+") as said:
        attacker = subprocess.Popen(command, cwd=ROOT, stdout=said)
        try:
            time.sleep(1.0)
            with measured(system, job_id) as seen:
                time.sleep(seconds)
        finally:
            attacker.kill()
            attacker.wait()
        said.seek(0)
        return seen, len(said.readlines())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=positive, default=20, help="how long each flood lasts")
    parser.add_argument("--only", choices=FLOODS, action="append", help="this flood; all by default")
    options = parser.parse_args()
    memory: dict[str, dict[str, tuple[float, float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, deployed(Path(folder) / "up", SETTINGS) as system:
        job_id, log_job = submit(system, "ann", training()), submit(system, "mallory", spec("log"))
        with closing(system.stubs) as stubs:
            wait_until(lambda: has_node(stubs, job_id), _PATIENCE_SECONDS, "the job's start")
        write_logs(system, log_job)
        with measured(system, job_id) as without:
            time.sleep(options.seconds)
        print("flood | GetJob median ms (ratio) | p99 | n | release median ms (ratio) | p99 | n | failed")
        print(row("none", without, without), flush=True)
        for name in options.only or FLOODS:
            before = memory_of(system)
            seen, rounds = flooded(system, name, job_id, log_job, options.seconds)
            time.sleep(_SETTLE_SECONDS)
            after = memory_of(system)
            print(row(f"{name} x{rounds}", seen, without), flush=True)
            memory[name] = {
                service: (size, seen.peaks.get(service, 0.0), after.get(service, 0.0))
                for service, size in before.items()
            }
    print("MiB: before, at most during, after")
    for name, services in memory.items():
        cells = (f"{service} {sizes[0]:.0f} {sizes[1]:.0f} {sizes[2]:.0f}" for service, sizes in services.items())
        print(" | ".join([name, *cells]))


if __name__ == "__main__":
    main()
