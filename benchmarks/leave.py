"""How fast an agent gives its node back, and how fast it is there: `python benchmarks/leave.py`.

Each round starts an agent that reports to a real registry, and a worker on it, as a supervisor does. The agent then
gets SIGTERM, as from Slurm; the supervisor hears of it and has the worker killed. In the same round the same worker is
started and killed without an agent, so that a busy machine slows both. With `--standby-mib 2048` each agent keeps a
standby process, which has imported all that it should when SIGTERM comes. With `--torch` the worker is a script that
has imported torch and computes, forked from the standby process where there is one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import structlog

from benchmarks.arguments import positive
from malletrain.common import environment as env
from malletrain.common.launch_file import AgentAddress
from malletrain.common.worker_process import WorkerProcess
from malletrain.runtime.access.pki import ensure_certificate, issue_to_node
from malletrain.runtime.clock import SystemClock
from malletrain.scavenger.acquisition.agent_registry import AgentRegistry
from malletrain.supervisor.workers.agent_links import AgentLink, start_message
from malletrain.supervisor.workers.slot import Slot

NODE = "n1"
COMMAND = ("/bin/sleep", "600")
SCRIPT = """
import pathlib, torch
weights = torch.zeros(1000, 1000)
pathlib.Path("computes").touch()
while True:
    weights += torch.rand(1000, 1000)
"""
LIFESPAN_SECONDS = 3600.0
PATIENCE_SECONDS = 60.0
STANDBY_READY = re.compile(r"standby process \d+ is ready")
NOT_FORKED = "is started as a new interpreter"


@dataclass(frozen=True)
class Work:
    """What the worker of each round runs.

    Attributes:
        command: Its command.
        folder: Its working directory.
        warm: Whether it imports what the script imports before it is told to go, and may be forked.
    """

    command: tuple[str, ...]
    folder: Path
    warm: bool

    @property
    def _sign(self) -> Path:
        return self.folder / "computes"

    def clear(self) -> None:
        """Forget an earlier worker."""
        self._sign.unlink(missing_ok=True)

    def runs(self, pid: int) -> bool:
        """Whether a worker has begun."""
        if self.warm:
            return self._sign.exists()
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(self.command[0].encode())


class Registry:
    """A registry in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self.registry = AgentRegistry(ensure_certificate(folder, "scavenger", SystemClock(), LIFESPAN_SECONDS), int)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.port = asyncio.run_coroutine_threadsafe(self.registry.open("127.0.0.1", 0), self._loop).result()

    def close(self) -> None:
        """Stop listening."""
        asyncio.run_coroutine_threadsafe(self.registry.close(), self._loop).result()


def until(condition: Callable[[], object], step: float = 0.0002) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: it has not come true in time.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("a condition has not come true")
        time.sleep(step)


def is_alive(pid: int) -> bool:
    """Whether there is such a process, be it a zombie."""
    return Path(f"/proc/{pid}").exists()


def measure_agent(work: Work, registry: Registry, agent: str, supervisor: Path, standby_mib: int) -> dict[str, float]:
    """Seconds that one agent needs to be there, and to leave with a worker.

    Raises:
        RuntimeError: the worker was to be forked, and was not.
    """
    folder = work.folder
    work.clear()
    said = folder / "agent.log"
    began = time.perf_counter()
    with said.open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "malletrain.agent", "--node", NODE, "--certificate", agent),
                *("--head", f"127.0.0.1:{registry.port}", "--standby-mib", str(standby_mib)),
            ],
            stderr=log,
        )
    try:
        until(lambda: NODE in registry.registry.present)
        registered = time.perf_counter()
        if standby_mib:
            until(lambda: STANDBY_READY.search(said.read_text(errors="replace")), 0.05)
        link = AgentLink(NODE, AgentAddress(registry.registry.present[NODE].address), supervisor)
        slot = Slot(NODE, 0)
        own = {**env.TRAINER_DEFAULTS, env.JOB_ID: f"bench-{os.getpid()}", env.JOB_DIR: str(folder)}
        worker = link.start(
            slot, start_message(slot, work.command, str(folder), own, folder / "worker.log", warm=work.warm)
        )
        until(worker.is_warm)
        worker.go({})
        until(lambda: work.runs(worker.pid))
        if standby_mib and NOT_FORKED in (text := said.read_text(errors="replace")):
            raise RuntimeError(f"the worker was not forked: {text}")
        told = time.perf_counter()
        process.send_signal(signal.SIGTERM)
        until(lambda: link.is_leaving)
        heard = time.perf_counter()
        worker.kill()
        until(lambda: not is_alive(worker.pid))
        clean = time.perf_counter()
        process.wait(PATIENCE_SECONDS)
        ended = time.perf_counter()
        link.close()
        until(lambda: NODE not in registry.registry.present)
    finally:
        process.kill()
        process.wait()
    return {
        "exec_to_registered": registered - began,
        "signal_to_supervisor": heard - told,
        "signal_to_clean": clean - told,
        "signal_to_exit": ended - told,
    }


def measure_worker(work: Work) -> float:
    """Seconds that the same worker needs to end when it is killed directly."""
    folder = work.folder
    work.clear()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # "python" is this one, as for the agent's workers
    own = {**os.environ, "PATH": path, env.JOB_ID: f"bench-{os.getpid()}", env.JOB_DIR: str(folder)}
    worker = WorkerProcess(work.command, str(folder), own, folder / "worker.log", warm=work.warm)
    until(worker.is_warm)
    worker.go({})
    until(lambda: work.runs(worker.pid))
    began = time.perf_counter()
    worker.kill()
    until(lambda: worker.poll() is not None)
    worker.close()
    return time.perf_counter() - began


def figures(seconds: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Median and 99th percentile of each series, in milliseconds."""
    return {
        name: {
            "median_ms": round(statistics.median(found) * 1000, 2),
            "p99_ms": round(sorted(found)[min(len(found) - 1, int(len(found) * 0.99))] * 1000, 2),
        }
        for name, found in seconds.items()
    }


def main() -> None:
    """Measure and print."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=positive, default=30, help="agents that are started and leave")
    parser.add_argument("--standby-mib", type=int, default=0, help="MiB for each standby process (0: none)")
    parser.add_argument("--torch", action="store_true", help="workers are scripts that have imported torch")
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        supervisor = ensure_certificate(folder, "supervisor", SystemClock(), LIFESPAN_SECONDS)
        agent = folder / "agent.pem"
        agent.touch(mode=0o600)
        agent.write_text(issue_to_node(folder, NODE, None, SystemClock(), LIFESPAN_SECONDS))
        registry = Registry(folder)
        script = folder / "script.py"
        script.write_text(SCRIPT)
        command = ("python", str(script)) if options.torch else COMMAND
        work = Work(command, folder, warm=options.torch)
        for _ in range(options.rounds):
            found = measure_agent(work, registry, str(agent), supervisor, options.standby_mib)
            found["worker_alone"] = measure_worker(work)
            for series, value in found.items():
                seconds.setdefault(series, []).append(value)
        registry.close()
    medians = {series: statistics.median(found) for series, found in seconds.items()}
    ratios = {
        f"ratio_{series}_to_worker_alone": round(medians[series] / medians["worker_alone"], 1)
        for series in ("signal_to_clean", "signal_to_exit")
    }
    print(json.dumps({**figures(seconds), **ratios}, indent=2))


if __name__ == "__main__":
    main()
