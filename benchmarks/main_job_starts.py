"""When does a main job start that wants all nodes? `python benchmarks/main_job_starts.py [--rounds 5]`.

Run from the repository's root, as root. On each batch scheduler that there is on this machine (Slurm of Debian, a later
Slurm and OpenPBS, where `make test-slurm` and `make test-pbs` have unpacked them) the same thing happens by turns: a
main job is submitted while a real training has all nodes, and while none of them is held. A table says when the job
started, and when the last process of the training had gone. Exits with 1 where a process of ours was left beside it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.rescaling.processes import interrupt_once
from malletrain.v1 import scavenger_pb2
from tests.pbs.cluster import missing as missing_pbs
from tests.pbs.cluster import pbs_cluster
from tests.schedulers.batch_cluster import BatchCluster, noting
from tests.schedulers.installation import TRAINER, Installation, installed
from tests.slurm.batch import SlurmCluster
from tests.slurm.cluster import cluster as slurm_cluster
from tests.slurm.cluster import missing as missing_slurm
from tests.support.servers import KNOWN
from tests.support.waiting import wait_until

NODES = 3
_PATIENCE = 240.0
_MAIN_SECONDS = 3
_POLL_SECONDS = 0.01
DEBIAN, LATER, PBS = "slurm", "slurm-later", "pbs"
KINDS = (DEBIAN, LATER, PBS)


@dataclass
class Waits:
    """What was measured on one scheduler, in seconds after the submissions.

    Attributes:
        behind: Starts of main jobs while a training had all nodes.
        idle: Starts while no node was held.
        ends: When the last process of the training had gone.
    """

    behind: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    @property
    def overlaps(self) -> list[float]:
        """How long processes of ours were beside a main job."""
        return [max(0.0, end - start) for start, end in zip(self.behind, self.ends, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="main jobs of each sort on each scheduler (5)")
    parser.add_argument("--scheduler", choices=KINDS, action="append", help="one of them; may be repeated (all)")
    options = parser.parse_args()
    interrupt_once()
    found: dict[str, Waits] = {}
    for kind in options.scheduler or KINDS:
        with tempfile.TemporaryDirectory(prefix="main-job-starts-") as folder, _environment(kind):
            if reason := _missing(kind):
                print(f"{kind}: {reason}", file=sys.stderr)
                continue
            with _cluster(kind, Path(folder)) as cluster:
                os.environ.update(cluster.environment)
                name = _release(kind)
                print(f"{name}: {options.rounds} rounds", file=sys.stderr)
                found[name] = _measure(cluster, Path(folder), options.rounds)
    _show(found)
    return int(any(overlap > 0 for waits in found.values() for overlap in waits.overlaps))


@contextmanager
def _environment(kind: str) -> Iterator[None]:
    """With the programs of that release first in the path; as before afterwards."""
    before, folder = dict(os.environ), KNOWN["slurm"].folder
    if kind == LATER:
        os.environ["PATH"] = os.pathsep.join([f"{folder}/bin", f"{folder}/sbin", before["PATH"]])
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _missing(kind: str) -> str:
    if kind == LATER and not (KNOWN["slurm"].folder / "bin").is_dir():
        return f"needs Slurm in {KNOWN['slurm'].folder}: make test-slurm unpacks it, where its files are"
    return missing_pbs() if kind == PBS else missing_slurm()


@contextmanager
def _cluster(kind: str, folder: Path) -> Iterator[BatchCluster]:
    if kind == PBS:
        with pbs_cluster(NODES) as pbs:
            yield pbs
    else:
        with slurm_cluster(folder / "slurm", NODES) as slurm:
            yield SlurmCluster(slurm)


def _release(kind: str) -> str:
    """What the scheduler calls itself, e.g. `slurm 25.05.8`."""
    program = "qstat" if kind == PBS else "sinfo"
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()


def _measure(cluster: BatchCluster, folder: Path, rounds: int) -> Waits:
    waits = Waits()
    with installed(cluster, folder) as running:
        job = running.submit(1, NODES)
        for number in range(rounds):
            _wait_for_training(running, job)
            start, end = _take(cluster, folder / f"behind-{number}", with_training=True)
            waits.behind.append(start)
            waits.ends.append(end)
            _drain(running)
            wait_until(lambda: not cluster.placeholders(), _PATIENCE, "nodes that nobody holds")
            waits.idle.append(_take(cluster, folder / f"idle-{number}", with_training=False)[0])
            with closing(running.deployment.stubs) as stubs:
                stubs.scavenger.ResumeNodes(scavenger_pb2.ResumeNodesRequest(all=True), timeout=10)
        running.deployment.command("cancel", job, timeout=90)
    return waits


def _wait_for_training(running: Installation, job: str) -> None:
    wait_until(lambda: len(running.nodes(job)) == NODES, _PATIENCE, "a training on all nodes")
    reached = running.samples(job)
    wait_until(lambda: running.samples(job) > reached, _PATIENCE, "samples")


def _drain(running: Installation) -> None:
    with closing(running.deployment.stubs) as stubs:
        stubs.scavenger.DrainNodes(scavenger_pb2.DrainNodesRequest(all=True), timeout=10)


def _take(cluster: BatchCluster, stamp: Path, *, with_training: bool) -> tuple[float, float]:
    """Seconds until a main job on all nodes starts, and until the last worker has gone; waits for the job's end."""
    if with_training and not _workers():
        raise RuntimeError("no worker is seen on nodes that a training has")
    submitted = time.time()
    main_job = cluster.submit_main(NODES, noting(stamp, _MAIN_SECONDS))
    deadline = time.monotonic() + _PATIENCE
    gone = None if with_training else 0.0
    while gone is None or not stamp.exists():
        if gone is None and not _workers():
            gone = time.time() - submitted
        if time.monotonic() > deadline:
            raise RuntimeError("the main job did not start, or a worker stayed")
        time.sleep(_POLL_SECONDS)
    wait_until(lambda: not cluster.is_running(main_job), _PATIENCE, "the end of the main job")
    return float(stamp.read_text()) - submitted, gone


def _workers() -> list[int]:
    """Processes that train."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it has just ended
            if os.fsencode(TRAINER) in words:
                found.append(int(entry.name))
    return found


def _show(found: Mapping[str, Waits]) -> None:
    print(
        "| in seconds | n | idle nodes: median | most | behind a training: median | most | last worker gone | beside |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, waits in found.items():
        cells = [*_two(waits.idle), *_two(waits.behind), *_two(waits.ends)[:1], max(waits.overlaps)]
        print(f"| {name} | {len(waits.behind)} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")


def _two(values: Sequence[float]) -> tuple[float, float]:
    return statistics.median(values), max(values)


if __name__ == "__main__":
    sys.exit(main())
