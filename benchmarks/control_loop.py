"""How fast the control loop is, and what it costs: `python benchmarks/control_loop.py [--jobs 100]`.

Five real services, and stand-ins for the supervisors and trainers of all jobs. Nodes leave and join by a trace.
Measured are the times from a leave to the command that releases the node, and from a join to the first command of the
plan that gives it to a job, with where that time went; plans that were refused or applied in part; CPU and memory of
each service, and what databases and logs grow by. Where goals are set for the size (`benchmarks/looping/goals.py`), the
exit status is 1 if one is missed, and a line on standard error says which.
`benchmarks/sizing_table.py` makes the tables of docs/operators/sizing.md from the output of some runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import psutil

from benchmarks.arguments import positive
from benchmarks.footprint import STORING, database_bytes, log_bytes, pss_mib
from benchmarks.looping.breakdown import logged, parts_of, read_lines
from benchmarks.looping.goals import missed_goals
from benchmarks.looping.measuring import Command, NodeEvent, latencies, summary
from benchmarks.looping.stand_ins import COMMANDS, STARTS, make_python
from malletrain.caller.credentials import owner_credential
from malletrain.cli.demo.setup import free_ports
from malletrain.cli.shared.settings import AllSettings, load
from malletrain.common.environment import JOB_DIR
from malletrain.common.processes import find_processes
from malletrain.runtime.channel import open_channel
from malletrain.runtime.following import follow
from malletrain.runtime.messages import unix_seconds
from malletrain.runtime.paging import all_pages_async
from malletrain.runtime.settings_file import SERVICES
from malletrain.scavenger.idle_trace import Fragment, Trace
from malletrain.scavenger.trace_files import write_trace
from malletrain.v1 import job_manager_pb2, job_manager_pb2_grpc, resources_pb2, scavenger_pb2, scavenger_pb2_grpc

ROOT = Path(__file__).parent.parent
PATIENCE_SECONDS = 240.0
_SUBMITTED_AT_ONCE = 50
_MAX_CURVE_POINTS = 500
_SHARE_AWAY = 0.01
"""Of the nodes: a node that left comes back after the others that are away, and not before its job has noticed."""
_REPORTERS_NICENESS = 19
"""Trainings report from other machines: here they take what the services leave of the processors."""
_START_SECONDS, _START_SECONDS_PER_JOB = 10.0, 0.06
"""After so long all jobs train on a machine that does nothing else: then the events begin."""
_LATEST_SECONDS = 90.0
"""On a busy one, events that come before all jobs train are not measured; so much later there are still some."""
LATENCIES = ("leave_to_release", "join_to_command", "join_to_node_given")
_MIN_FOR_PERCENTILE = 100


def make_trace(nodes: int, first_s: float, seconds: float, per_second: float, seed: int = 1) -> Trace:
    """Nearly all nodes idle; from `first_s` on, a leave and a join by turns. The node that is away longest joins."""
    rng, names = random.Random(seed), [f"n{number:05d}" for number in range(nodes)]
    duration = first_s + seconds + 60.0
    away = names[-max(1, int(nodes * _SHARE_AWAY)) :]
    since, fragments = dict.fromkeys(names[: -len(away)], 0.0), []
    for number in range(int(seconds * per_second)):
        now = first_s + number / per_second
        if number % 2 == 0:
            name = rng.choice(list(since))
            fragments.append(Fragment(name, since.pop(name), now))
            away.append(name)
        else:
            since[away.pop(0)] = now
    fragments += [Fragment(name, begin, duration) for name, begin in since.items()]
    return Trace(tuple(sorted(fragments, key=lambda entry: entry.idle_from_s)), tuple(names), duration)


def write_settings(folder: Path, jobs: int) -> Path:
    """The configuration of the five services."""
    addresses = "\n".join(f'{name} = "127.0.0.1:{port}"' for name, port in zip(SERVICES, free_ports(), strict=True))
    config = folder / "malletrain.toml"
    config.write_text(
        f'state_dir = "{folder}"\n[addresses]\n{addresses}\n'
        f'[scavenger]\nsource = "trace"\ntrace = "{folder / "trace.csv"}"\ndebounce_seconds = 0\n'
        f'[job_manager]\nmax_parallel = {jobs}\ntrainer_python = "{make_python(folder)}"\nstop_jobs_on_exit = false\n'
        f"standby_memory_mib = 0\nmax_submissions_per_second = {max(50, jobs)}\n"
    )
    return config


@contextmanager
def running(folder: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program whose output goes to a file, ended at the end."""
    with (folder / f"{command[1].rpartition('.')[2]}.log").open("ab") as log:
        process = subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def service_processes(up: int) -> dict[str, psutil.Process]:
    """The services that a `malletrain up` has started, by name."""
    found = {}
    for child in psutil.Process(up).children():
        with suppress(psutil.NoSuchProcess):  # it is being started anew
            words = child.cmdline()
            if "serve" in words:
                found[words[words.index("serve") + 1]] = child
    return found


def cpu_seconds(processes: dict[str, psutil.Process]) -> dict[str, float]:
    """CPU time of each service that still runs, in seconds."""
    found = {}
    for name, process in processes.items():
        with suppress(psutil.NoSuchProcess):
            found[name] = sum(process.cpu_times()[:2])
    return found


def stored_bytes(state: Path) -> dict[str, int]:
    """Size of each service's database, and of all logs together."""
    return {**{name: database_bytes(state, name) for name in STORING}, "logs": log_bytes(state)}


class Run:
    """One measurement.

    Attributes:
        events: What the Scavenger said while it was measured.
    """

    def __init__(self, settings: AllSettings, options: argparse.Namespace, up: int) -> None:
        credential = owner_credential(settings)
        self.events: list[NodeEvent] = []
        self._options, self._up, self._state = options, up, settings.state_dir
        self._jobs: job_manager_pb2_grpc.JobManagerServiceAsyncStub = job_manager_pb2_grpc.JobManagerServiceStub(
            open_channel(settings.peer("job_manager"), credential)
        )
        self._nodes: scavenger_pb2_grpc.ScavengerServiceAsyncStub = scavenger_pb2_grpc.ScavengerServiceStub(
            open_channel(settings.peer("scavenger"), credential)
        )

    async def submit(self) -> None:
        """Submit the jobs and wait until they train."""
        largest = max(2, 2 * self._options.nodes // self._options.jobs)
        counts = range(1, largest + 1, max(1, largest // _MAX_CURVE_POINTS))
        curve = [resources_pb2.ScalingPoint(nodes=count, rate=100.0 * count**0.9) for count in counts]
        spec = resources_pb2.JobSpec(
            name="stand-in", command=["/bin/true"], working_directory="/", min_nodes=1, max_nodes=largest, curve=curve
        )
        for first in range(0, self._options.jobs, _SUBMITTED_AT_ONCE):
            count = min(_SUBMITTED_AT_ONCE, self._options.jobs - first)
            await self._jobs.SubmitJobs(job_manager_pb2.SubmitJobsRequest(specs=[spec] * count))
        deadline = time.monotonic() + PATIENCE_SECONDS
        states = {resources_pb2.JOB_STATE_RUNNING, resources_pb2.JOB_STATE_RESCALING}
        while True:
            found = 0
            async for page in all_pages_async(self._jobs.ListJobs, job_manager_pb2.ListJobsRequest()):
                found += sum(job.state in states for job in page.jobs)
            if found >= self._options.jobs * 0.99:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"only {found} jobs train")
            await asyncio.sleep(1.0)

    async def measure(self, own: dict[str, psutil.Process]) -> dict[str, Any]:
        """Watch events, and what the services cost meanwhile.

        Args:
            own: Processes of the benchmark itself, by name.
        """
        watching = asyncio.create_task(
            follow("nodes", lambda: self._nodes.WatchNodes(scavenger_pb2.WatchNodesRequest()), self._note)
        )
        begin, services = time.monotonic(), service_processes(self._up)
        before, stored, own_before = cpu_seconds(services), stored_bytes(self._state), cpu_seconds(own)
        if self._options.kill:
            await self._kill_now_and_then()
        else:
            await asyncio.sleep(self._options.seconds)
        passed, after, own_after = time.monotonic() - begin, cpu_seconds(services), cpu_seconds(own)
        watching.cancel()
        running, sizes, memory, shared_once = service_processes(self._up), stored_bytes(self._state), {}, {}
        for name, process in running.items():
            with suppress(psutil.NoSuchProcess):
                memory[name] = round(process.memory_info().rss / 2**20)
                shared_once[name] = round(pss_mib(process) or 0.0, 1)
        await asyncio.sleep(3.0)  # the commands that follow from the last events
        cores = {name: round((seconds - before[name]) / passed, 3) for name, seconds in after.items()}
        return {
            "cores": cores,
            "benchmark_cores": {
                name: round((seconds - own_before[name]) / passed, 3) for name, seconds in own_after.items()
            },
            "memory_mib": memory,
            "pss_mib": shared_once,
            "measured_s": round(passed, 1),
            "node_changes": len(self.events),
            "stored_bytes": sizes,
            "grown_bytes": {name: size - stored[name] for name, size in sizes.items()},
        }

    async def _kill_now_and_then(self) -> None:
        deadline, rng = time.monotonic() + self._options.seconds, random.Random(2)
        while time.monotonic() < deadline:
            await asyncio.sleep(self._options.kill)
            name, process = rng.choice(sorted(service_processes(self._up).items()))
            print(f"kill -9 {name}", file=sys.stderr)
            process.kill()

    async def _note(self, message: scavenger_pb2.WatchNodesResponse) -> None:
        if not message.snapshot:
            now = unix_seconds(message.event_time)
            self.events += [NodeEvent(now, node.name, True) for node in message.joined]
            self.events += [NodeEvent(now, name, False) for name in message.left]


def plan_outcomes(log: Path, since: float) -> dict[str, Any]:
    """How many plans were applied, wholly or in part, and how many were refused, from the Allocator's log."""
    applied = in_part = refused = 0
    seconds: list[float] = []
    reasons: dict[str, int] = {}
    for line in log.read_text().splitlines():
        if '"event": "plan made"' not in line:
            continue
        entry = json.loads(line)
        if datetime.fromisoformat(entry["timestamp"]).timestamp() < since:
            continue
        applied += bool(entry["applied"])
        in_part += bool(entry["applied"] and entry["omissions"])
        refused += not entry["applied"]
        seconds.append(entry["solve_seconds"])
        if entry["refusal"]:
            words = " ".join(word for word in entry["refusal"].split() if not any(map(str.isdigit, word)))
            reasons[words] = reasons.get(words, 0) + 1
    return {
        "applied": applied,
        "applied_in_part": in_part,
        "refused": refused,
        "refusals": reasons,
        "solve": summary(seconds),
    }


def notes(figures: dict[str, Any]) -> list[str]:
    """What a reader of the figures has to know."""
    few = [name for name in LATENCIES if 0 < figures[name]["count"] <= _MIN_FOR_PERCENTILE]
    return [f"{name}: of so few values, the 99th percentile is the largest" for name in few]


async def run(
    folder: Path, config: Path, options: argparse.Namespace, up: int, origin: float, stand_ins: psutil.Process
) -> dict[str, Any]:
    """Submit, wait for the first event of the trace, measure."""
    found = Run(load(config), options, up)
    await found.submit()
    ready = time.time() - origin
    reporters = [str(folder), str(config), str(options.jobs), str(options.batches)]
    with running(folder, "-m", "benchmarks.looping.reporters", *reporters) as reporting:
        os.setpriority(os.PRIO_PROCESS, reporting.pid, _REPORTERS_NICENESS)
        await asyncio.sleep(max(5.0, options.first_s - ready))
        since = time.time()
        figures = await found.measure({"reporters": psutil.Process(reporting.pid), "stand_ins": stand_ins})
    commands = [Command.of(line) for line in (folder / COMMANDS).read_text().splitlines()]
    matched, said = latencies(found.events, commands), logged(read_lines(folder / "logs"))
    report: dict[str, Any] = {
        "jobs": options.jobs,
        "nodes": options.nodes,
        "events_per_second": options.events,
        "batches_per_second": options.batches,
        "kills": options.kill > 0,
        "ready_s": round(ready, 1),
        "leave_to_release": summary(matched.releases),
        "join_to_command": summary(matched.commands),
        "join_to_node_given": summary(matched.growths),
        "release_parts": parts_of(matched.released, said, said.released, "job_manager"),
        "join_parts": parts_of(matched.commanded, said, said.planned, "allocator"),
        "unreleased": matched.unreleased,
        "joined_and_unused": matched.idle,
        "plans": plan_outcomes(folder / "logs/allocator.log", since),
        **figures,
    }
    return {**report, "notes": notes(report), "missed_goals": missed_goals(report)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=positive, default=100)
    parser.add_argument("--nodes", type=positive, default=1000)
    parser.add_argument("--events", type=float, default=1.0, help="leaves and joins a second, together")
    parser.add_argument(
        "--batches",
        type=float,
        default=10.0,
        help="batches a second of each job; their records go to Monitor in messages by the sidecar's rule",
    )
    parser.add_argument("--seconds", type=positive, default=240, help="how long is measured")
    parser.add_argument("--kill", type=float, default=0.0, help="kill -9 of a random service every so many seconds")
    parser.add_argument(
        "--stalls", type=float, default=0.0, help="services log what keeps their event loops busy for so many ms"
    )
    parser.add_argument("--folder", type=Path, help="where its files are left; by default they are removed")
    options = parser.parse_args()
    options.first_s = _START_SECONDS + _START_SECONDS_PER_JOB * options.jobs
    with tempfile.TemporaryDirectory(prefix="loop-") as name:
        folder = options.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        write_trace(
            make_trace(options.nodes, options.first_s, options.seconds + _LATEST_SECONDS, options.events),
            folder / "trace.csv",
        )
        config = write_settings(folder, options.jobs)
        os.environ["COLUMNS"] = "200"
        os.environ["MALLETRAIN_LOG_STALLS_MS"] = str(options.stalls)
        try:
            with running(folder, "-m", "benchmarks.looping.stand_ins", str(folder)) as standing_in:
                while not (folder / STARTS).exists():
                    time.sleep(0.05)
                with running(folder, "-m", "malletrain.cli.main", "up", "--config", str(config)) as up:
                    origin = time.time()
                    while "stop with Ctrl-C" not in (folder / "main.log").read_text():
                        if up.poll() is not None:
                            sys.exit((folder / "main.log").read_text())
                        time.sleep(0.1)
                    stand_ins = psutil.Process(standing_in.pid)
                    figures = asyncio.run(run(folder, config, options, up.pid, origin, stand_ins))
        finally:
            jobs = str(folder / "jobs")
            for process in find_processes(lambda found: found.get(JOB_DIR, "").startswith(jobs)):
                process.id.kill()
    print(json.dumps(figures, indent=1))
    if figures["missed_goals"]:
        sys.exit("\n".join(figures["missed_goals"]))


if __name__ == "__main__":
    main()
