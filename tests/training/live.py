"""An example under the five services, while nodes are taken and returned and a worker is killed: what it costs."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from malletrain.client.sampling import EpochOrder
from malletrain.client.training import permutation
from malletrain.v1 import monitor_pb2, scavenger_pb2
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed
from tests.training.accounts import Accounts, accounts_of, lines_in

ROOT = Path(__file__).parents[2]
NODES = ("n1", "n2", "n3", "n4")
SCALES = (1, 3, 2, 1, 4)
STEPS = 8
"""Steps of rank 0 at a scale before the next change."""
PATIENCE = 150.0
"""Seconds. Frameworks take long to import where others use the machine, too."""
_LOADED = re.compile(r"resumed at (\d+) samples, loaded in ([\d.]+) s")
SETTINGS = f"""
[job_manager]
trainer_python = "{sys.executable}"
standby_memory_mib = 2048
restart_backoff_seconds = 0.1
# Long enough to save on a busy machine: the workers share its cores with all other tests.
drain_grace_seconds = 15
[scavenger]
source = "static"
debounce_seconds = 0
"""


@dataclass
class LiveTraining:
    """One job.

    Attributes:
        system: The services.
        job: Its identifier.
        changes: What was done to it, and when.
        releases: How long it took until nodes that were taken were free, in seconds.
        killed: Process id of the worker that was killed.
        patience: How long to wait for a scale, in seconds.
    """

    system: Deployment
    job: str
    changes: list[tuple[str, float]] = field(default_factory=list)
    releases: list[float] = field(default_factory=list)
    killed: int = 0
    patience: float = PATIENCE

    @property
    def folder(self) -> Path:
        """The job's folder."""
        return self.system.folder / "jobs" / self.job

    def steps(self) -> list[dict[str, Any]]:
        """Rank 0's steps, in order of time."""
        return [line for line in lines_in(self.folder) if line["rank"] == 0]

    def newest(self, rank: int) -> dict[str, Any]:
        """The newest step of a rank."""
        return [line for line in lines_in(self.folder) if line["rank"] == rank][-1]

    def wait_scale(self, workers: int) -> None:
        """Wait for steps of so many workers that began after the last change."""
        since = self.changes[-1][1] if self.changes else 0.0

        def enough() -> bool:
            found = [step for step in self.steps() if step["time"] > since and step["size"] == workers]
            return len(found) >= STEPS and found[-1]["pid"] == found[-STEPS]["pid"]

        self.wait(enough, self.patience, f"{STEPS} steps of {workers} workers")

    def give(self, *nodes: str) -> None:
        """Return nodes to it."""
        self.change("growth")
        self.call("ResumeNodes", scavenger_pb2.ResumeNodesRequest(nodes=nodes))

    def take(self, *nodes: str) -> None:
        """Take nodes away."""
        self.change("shrink")
        self.free("DrainNodes", scavenger_pb2.DrainNodesRequest(nodes=nodes))

    def reclaim(self, *nodes: str, what: str = "reclaim of rank 0's node") -> None:
        """Have the main scheduler want nodes back, at once."""
        self.change(what)
        self.free("ReclaimNodes", scavenger_pb2.ReclaimNodesRequest(nodes=nodes, hold_seconds=600))

    def free(self, method: str, request: Any) -> None:
        """Have nodes freed."""
        began = time.monotonic()
        answer = self.call(method, request)
        assert list(answer.released) == list(request.nodes)
        self.releases.append(round(time.monotonic() - began, 2))

    def kill(self, rank: int) -> None:
        """Kill a worker."""
        self.change("kill -9")
        self.killed = self.newest(rank)["pid"]
        os.kill(self.killed, signal.SIGKILL)

    def change(self, what: str) -> None:
        """Note a change."""
        self.changes.append((what, time.time()))

    def call(self, method: str, request: Any) -> Any:
        """Ask the Scavenger."""
        stubs = self.system.stubs
        try:
            return getattr(stubs.scavenger, method)(request, timeout=PATIENCE)
        finally:
            stubs.close()

    def nodes(self) -> list[str]:
        """Nodes of its present workers, by rank."""
        newest = self.newest(0)
        return [self.newest(rank)["node"] for rank in range(newest["size"])]

    def accounts(self) -> Accounts:
        """What its workers have trained with."""
        first = self.newest(0)
        found = accounts_of(self.folder, first["dataset"], len(first["indices"]))
        add_last_batch(found, self.killed)
        return found

    def state(self) -> dict[str, Any]:
        """What `malletrain job` says."""
        done = self.system.command("job", self.job, "--json", timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def wait(self, predicate: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait for something; what the job has said is added to the error."""
        try:
            wait_until(predicate, seconds, what)
        except AssertionError as error:
            logs = [self.folder / "supervisor.log", *sorted(self.folder.glob("logs/*.log"))]
            said = [f"== {path.name}\n{path.read_text()[-3000:]}" for path in logs if path.exists()]
            raise AssertionError("\n".join([str(error), *said])) from None

    def wait_completed(self, seconds: float) -> dict[str, Any]:
        """Wait for its good end."""
        self.wait((self.folder / "completed.json").exists, seconds, "its end")
        wait_until(lambda: self.system.state(self.job) == "COMPLETED", PATIENCE, "COMPLETED")
        return self.state()

    def processes(self) -> list[psutil.Process]:
        """What still runs of it."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("MALLETRAIN_JOB_DIR") == str(self.folder):
                    found.append(process)
            except psutil.Error:
                continue
        return found


@contextmanager
def live_training(
    folder: Path,
    example: Path,
    *arguments: str,
    backend: str = "torchrun",
    notes: bool = False,
    options: Sequence[str] = (),
    nodes: Sequence[str] = NODES,
) -> Iterator[LiveTraining]:
    """Submit an example to new services with one node.

    Args:
        folder: A folder of the test.
        example: The script. What is run is a copy with one line more, which notes what it does.
        arguments: Its arguments.
        backend: How its workers are driven.
        notes: Whether the script itself notes what it does, and nothing is added.
        options: More options of its submission.
        nodes: The virtual nodes; all but the first one are drained before it is submitted.
    """
    script = folder / "train.py"
    first, annotations, rest = example.read_text().partition("from __future__ import annotations\n")
    script.write_text(example.read_text() if notes else f"{first}{annotations}\nimport noting\n{rest}")
    (folder / "noting.py").write_text((Path(__file__).with_name("noting.py")).read_text())
    settings = f"{SETTINGS}nodes = {json.dumps(list(nodes))}\n"
    with deployed(folder / "state", settings, seconds=PATIENCE) as system:
        wait_until(lambda: len(system.json("nodes")) == len(nodes), PATIENCE, "idle nodes")
        training = LiveTraining(system, "")
        training.call("DrainNodes", scavenger_pb2.DrainNodesRequest(nodes=nodes[1:]))
        curve = ",".join(f"{count}:{100 * count - 5 * (count - 1)}" for count in range(1, len(nodes) + 1))
        scale = ["--max", str(len(nodes)), "--profile", "never", "--curve", curve]
        more = ["--backend", backend, *scale, "--scale-up", "1", "--scale-down", "1", *options]
        done = system.command("submit", *more, "--", "python", str(script), *arguments)
        assert done.returncode == 0, done.stderr
        training.job = done.stdout.strip()
        yield training


def change_scales(training: LiveTraining) -> None:
    """Over 1, 3, 2, 1 and 4 workers; then one is killed, and rank 0's node is wanted back."""
    training.wait(lambda: bool(training.steps()), PATIENCE, "the first step")
    training.wait_scale(SCALES[0])
    for before, after in itertools.pairwise(SCALES):
        used = training.nodes()
        if after > before:
            training.give(*[node for node in NODES if node not in used][: after - before])
        else:
            training.take(*used[after:])
        training.wait_scale(after)
    training.kill(2)
    training.wait_scale(4)
    training.reclaim(training.newest(0)["node"])
    training.wait_scale(3)


@dataclass(frozen=True)
class Pause:
    """What a change cost.

    Attributes:
        change: Number of the change, from 0. One may cost several pauses, if not all workers are there in time.
        what: The change.
        before: Workers before it.
        after: Workers after it.
        seconds: From the last step at the old scale to the first at the new one, less a usual step.
        repeated: Samples that were trained with again.
        resumed: The sample counter that the training went on from.
        loading: Seconds of the pause in which rank 0 filled weights and optimizer from disk, where it says so.
        end: When the first step at the new scale was made, in seconds since the epoch.
    """

    change: int
    what: str
    before: int
    after: int
    seconds: float
    repeated: int
    resumed: int
    loading: float | None
    end: float


def pauses(training: LiveTraining) -> list[Pause]:
    """What each change has cost."""
    steps = training.steps()
    members, loading = _members(training.folder), _loading_seconds(training.folder)
    found = []
    for last, first in itertools.pairwise(steps):
        if members(last) == members(first):
            continue
        change = sum(when <= first["time"] for _, when in training.changes) - 1
        what = training.changes[change][0]
        usual = median(step["time"] - before["time"] for before, step in _same(steps, first))
        reached = last.get("reached", last["before"] + last["size"] * len(last["indices"]))
        gap = first["time"] - last["time"] - usual
        repeated, sizes = reached - first["before"], (last["size"], first["size"])
        seconds = loading.get(first["before"])
        found.append(Pause(change, what, *sizes, round(gap, 2), repeated, first["before"], seconds, first["time"]))
    return found


def _loading_seconds(folder: Path) -> dict[int, float]:
    """How long loading took, by the sample counter from which workers went on."""
    said = "".join(path.read_text() for path in folder.glob("logs/*.log"))
    return {int(samples): float(seconds) for samples, seconds in _LOADED.findall(said)}


def add_last_batch(accounts: Accounts, killed: int) -> None:
    """Add the last batch of a killed worker, which may have exchanged its gradients and not have noted its samples.

    Only its own share of the batch after its last note is added, and only if others have noted that batch.
    """
    own = [batch for batch in accounts.batches if batch["pid"] == killed]
    if not own:
        return
    batch = len(own[-1]["indices"])
    start = own[-1]["before"] + own[-1]["size"] * batch
    others = [one for one in accounts.batches if one["before"] == start and one["size"] == own[-1]["size"]]
    order = EpochOrder(accounts.size, 0, permutation)
    for number in range(start + own[-1]["rank"] * batch, start + (own[-1]["rank"] + 1) * batch):
        if others and number not in accounts.attempts:
            accounts.attempts[number] = order.span(number, 1)


def scales_after(found: list[Pause]) -> tuple[int, ...]:
    """Workers that each change has led to, in the end."""
    return tuple({pause.change: pause.after for pause in found}.values())


def _members(folder: Path) -> Callable[[dict[str, Any]], tuple[int, ...]]:
    """Says of a step of rank 0 which processes made it, by rank."""
    lines: dict[tuple[int, int, int], list[dict[str, Any]]] = {}
    for line in lines_in(folder):
        lines.setdefault((line["before"], line["size"], line["rank"]), []).append(line)

    def members(step: dict[str, Any]) -> tuple[int, ...]:
        of_rank = [lines.get((step["before"], step["size"], rank), []) for rank in range(step["size"])]
        return tuple(min(same, key=lambda line: abs(line["time"] - step["time"]))["pid"] for same in of_rank if same)

    return members


def _same(steps: list[dict[str, Any]], like: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    def alike(step: dict[str, Any]) -> bool:
        return bool(step["pid"] == like["pid"] and step["size"] == like["size"])

    return [pair for pair in itertools.pairwise(steps) if alike(pair[0]) and alike(pair[1])]


def measured(training: LiveTraining) -> list[tuple[int, int, float, float]]:
    """The rescales that Monitor has measured: scale before, scale after, stall in seconds, and when it was over."""
    stubs = training.system.stubs
    try:
        request = monitor_pb2.ListScalingRecordsRequest(job_ids=[training.job])
        records = stubs.monitor.ListScalingRecords(request, timeout=PATIENCE).records
    finally:
        stubs.close()
    return [
        (entry.from_nodes, entry.to_nodes, entry.stall_seconds, entry.unix_seconds)
        for record in records
        for entry in record.rescales
    ]


def check_measured(training: LiveTraining) -> None:
    """What Monitor has measured is what the stopwatch says: each change that a plan or a drain has commanded, once.

    The stopwatch is what the script itself has noted of its last and first steps.
    """
    found = measured(training)
    for number, (what, _) in enumerate(training.changes):
        watched = [pause for pause in pauses(training) if pause.change == number]
        if len(watched) != 1 or watched[0].before == watched[0].after:
            continue  # not all workers were there in time, or one was killed: no figure, or several
        pause = watched[0]
        # Another change may follow within a second.
        scales = (pause.before, pause.after)
        stalls = [entry for entry in found if abs(entry[3] - pause.end) < 1.0 and entry[:2] == scales]
        if len(stalls) != 1:
            state = training.state()
            history = [(event["unixSeconds"], event["toState"], event["reason"]) for event in state["events"]]
            raise AssertionError(f"{what}: {pause}\nmeasured: {found}\n{state['scaleCommand']}\n{history}")
        # A usual step is subtracted from both, which on a busy machine is not the same one.
        assert abs(stalls[0][2] - pause.seconds) < 1.0 + 0.1 * pause.seconds, (what, pause, stalls)


def keep(name: str, training: LiveTraining) -> list[Pause]:
    """Print what was measured, and keep it in build/live; the pauses."""
    found = pauses(training)
    memory: dict[int, dict[str, int]] = {}
    for line in lines_in(training.folder):
        if "pss" in line:
            kept = memory.setdefault(line["size"], {})
            kept |= {part: max(kept.get(part, 0), line[part]) for part in ("pss", "own", "moments", "whole")}
    record = {
        "pauses": [vars(pause) for pause in found],
        "stalls that Monitor has measured": measured(training),
        "seconds until nodes were free": training.releases,
        "memory of a worker in bytes, by scale": memory,
    }
    path = ROOT / "build" / "live" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(path.read_text())
    return found
