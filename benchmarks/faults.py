"""The fault matrix: real trainings, real faults, at random moments: `python benchmarks/faults.py [--repeats 20]`.

Run from the repository's root. Each fault hits a job of three workers again and again; what counts is whether it goes
on, how many batches were done in vain, how long rank 0 stood still, and whether any process is left. Exits with 1 if a
job did not go on or left a process. `docs/reliability.md` has the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.supervisor.running import Supervised, supervised
from tests.support.waiting import wait_until

_HOSTS = ("n1", "n2", "n3")
_BATCH = 8
_PATIENCE_S = 90.0
_TRIALS_PER_JOB = 4
"""After six failures in ten minutes a supervisor leaves a host's worker alone: no fault of the seventh."""
Act = Callable[[Supervised, random.Random], Sequence[str]]
"""Does something to a job of three workers; returns the hosts that it should have in the end."""


@dataclass(frozen=True)
class Trial:
    """One fault: whether the job went on, batches done in vain, seconds that rank 0 stood still, processes left."""

    went_on: bool
    lost_batches: float
    stalled_s: float
    processes_left: int


def kill_a_worker(job: Supervised, rng: random.Random) -> Sequence[str]:
    others = [host for host in _HOSTS if host != rank_0_host(job)]
    return _hit(job, rng.choice(others), signal.SIGKILL)


def kill_rank_0(job: Supervised, rng: random.Random) -> Sequence[str]:
    del rng
    return _hit(job, rank_0_host(job), signal.SIGKILL)


def stop_a_worker(job: Supervised, rng: random.Random) -> Sequence[str]:
    return _hit(job, rng.choice(_HOSTS), signal.SIGSTOP)


def _hit(job: Supervised, host: str, number: signal.Signals) -> Sequence[str]:
    """Send a signal, and wait until the worker is gone: before that, all looks well."""
    pid = job.pids()[host]
    os.kill(pid, number)
    wait_until(lambda: job.pids().get(host) != pid, _PATIENCE_S, f"the end of the worker on {host}")
    return _HOSTS


def take_a_node(job: Supervised, rng: random.Random) -> Sequence[str]:
    gone = rng.choice(_HOSTS)
    job.release(gone, grace=1.5)
    return [host for host in _HOSTS if host != gone]


def take_rank_0_at_once(job: Supervised, rng: random.Random) -> Sequence[str]:
    del rng
    gone = rank_0_host(job)
    job.release(gone, grace=0.0)
    return [host for host in _HOSTS if host != gone]


def kill_a_booting_newcomer(job: Supervised, rng: random.Random) -> Sequence[str]:
    job.command(*_HOSTS, "n4")
    pid = wait_until(lambda: job.pids().get("n4"), _PATIENCE_S, "the newcomer")
    time.sleep(rng.uniform(0.0, 4.0))
    if job.pids().get("n4") == pid:
        os.kill(pid, signal.SIGKILL)
    return [*_HOSTS, "n4"]


def change_twice_at_once(job: Supervised, rng: random.Random) -> Sequence[str]:
    job.command(*_HOSTS[:2])
    time.sleep(rng.uniform(0.0, 0.1))
    job.command(*_HOSTS, "n4")
    return [*_HOSTS, "n4"]


def replace_all_hosts(job: Supervised, rng: random.Random) -> Sequence[str]:
    del rng
    job.command("m1", "m2", "m3")
    return ["m1", "m2", "m3"]


FAULTS: dict[str, Act] = {
    "kill -9 of a worker": kill_a_worker,
    "kill -9 of rank 0": kill_rank_0,
    "SIGSTOP of a worker": stop_a_worker,
    "a node taken with 1.5 s notice": take_a_node,
    "rank 0's node taken at once": take_rank_0_at_once,
    "a newcomer killed while it boots": kill_a_booting_newcomer,
    "two changes within 100 ms": change_twice_at_once,
    "all hosts replaced": replace_all_hosts,
}
SUPERVISOR = "kill -9 of the supervisor"


def rank_0_host(job: Supervised) -> str:
    pid = job.batches()[-1]["pid"]
    return next(host for host, other in job.pids().items() if other == pid)


def trials(folder: Path, act: Act, repeats: int, rng: random.Random) -> Iterator[Trial]:
    """Fault after fault; a new job after some, and where one did not go on."""
    done = 0
    while done < repeats:
        with supervised(folder / f"job{done}", *_HOSTS) as job:
            went_on, until = True, min(repeats, done + _TRIALS_PER_JOB)
            while done < until and went_on:
                job.rescale(*_HOSTS)
                time.sleep(rng.uniform(0.0, 1.5))
                found = _trial(job, act, rng)
                went_on = found.went_on
                done += 1
                if not went_on or done == until:
                    found = Trial(found.went_on, found.lost_batches, found.stalled_s, _left_after_stop(job))
                yield found


def supervisor_trials(folder: Path, repeats: int, rng: random.Random) -> Iterator[Trial]:
    """Each time the job is started again on its folder, as JobManager does."""
    since = 0.0
    for repeat in range(repeats + 1):
        with supervised(folder / "job", *_HOSTS) as job, _reported(since) as report:
            job.wait_batch(3)
            if repeat:
                yield report(job, [])
            time.sleep(rng.uniform(0.5, 1.5))
            since = time.time()
            os.kill(job.process.pid, signal.SIGKILL)
            job.process.wait()
            wait_until(lambda job=job: not job.processes(), _PATIENCE_S, "the workers' end")


@contextmanager
def _reported(since: float) -> Iterator[Callable[[Supervised, Sequence[int]], Trial]]:
    yield lambda job, left: Trial(True, *_losses(job, since), len(left))


def _trial(job: Supervised, act: Act, rng: random.Random) -> Trial:
    since = time.time()
    try:
        hosts = sorted(act(job, rng))
        wait_until(lambda: sorted(job.state().confirmed_hosts) == hosts, _PATIENCE_S, f"{hosts}")
        job.wait_batch(len(hosts))
    except (TimeoutError, AssertionError, grpc.RpcError) as error:
        outcome = job.folder / "outcome.json"
        how = outcome.read_text() if outcome.exists() else ""
        print(f"  did not go on: {str(error)[:200]} {how}", file=sys.stderr)
        return Trial(False, *_losses(job, since), 0)
    return Trial(True, *_losses(job, since), 0)


def _losses(job: Supervised, since: float) -> tuple[float, float]:
    """Batches done in vain and rank 0's longest pause, from just before a moment on."""
    lines = job.batches()
    first = max(0, next((i for i, line in enumerate(lines) if line["time"] > since), len(lines)) - 1)
    lost, pause = 0.0, 0.0
    for line, following in zip(lines[first:], lines[first + 1 :], strict=False):
        step = _BATCH * line["size"]
        lost += max(0, line["before"] + step - following["before"]) / step
        pause = max(pause, following["time"] - line["time"])
    return lost, pause


def _left_after_stop(job: Supervised) -> int:
    if job.process.poll() is None:
        job.stop(grace=5.0)
        job.process.wait(_PATIENCE_S)
    return len(job.processes())


def summary(fault: str, found: Sequence[Trial]) -> dict[str, object]:
    lost, stalled = [trial.lost_batches for trial in found], [trial.stalled_s for trial in found]
    return {
        "fault": fault,
        "repeats": len(found),
        "went_on": sum(trial.went_on for trial in found),
        "lost_batches_median": statistics.median(lost),
        "lost_batches_max": max(lost),
        "stalled_s_median": round(statistics.median(stalled), 2),
        "stalled_s_max": round(max(stalled), 2),
        "processes_left": sum(trial.processes_left for trial in found),
        "trials": [asdict(trial) for trial in found],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="part of a fault's name")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    found = []
    for fault in (*FAULTS, SUPERVISOR):
        if arguments.only and arguments.only not in fault:
            continue
        with tempfile.TemporaryDirectory() as folder:
            series = (
                supervisor_trials(Path(folder), arguments.repeats, rng)
                if fault == SUPERVISOR
                else trials(Path(folder), FAULTS[fault], arguments.repeats, rng)
            )
            found.append(summary(fault, list(series)))
        if not arguments.json:
            print("  ".join(f"{key}={value}" for key, value in found[-1].items() if key != "trials"), flush=True)
    if arguments.json:
        print(json.dumps(found, indent=2))
    good = all(entry["went_on"] == entry["repeats"] and not entry["processes_left"] for entry in found)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
