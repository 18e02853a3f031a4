"""Trainings as processes that share a feed, and what they have noted."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import sys
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import psutil

from malletrain.client.sampling import EpochOrder
from tests.support.waiting import wait_until

SIZE = 60
PATIENCE = 60.0
DEFAULTS: dict[str, Any] = {
    "feed": "tests.client.feed.feed_data:noted",
    "size": SIZE,
    "seed": 3,
    "batch": 4,
    "start": 0,
    "until": 3 * SIZE,
    "workers": 2,
    "patience": 30.0,
    "step": 0.0,
    "fails_at": -1,
    "pause": 0.0,
    "limits": {"linger_seconds": 0.5},
}


ALONE = "alone"
"""A training without a feed, which shows how long the machine keeps a process waiting at the same time."""
HOPS = 4
"""Processes that wait for each other from a fault to the next batch: training, feed, one that prepares, training."""
ENDLESS = 10_000 * SIZE
"""Samples that no test waits for: it ends the trainings by `stop`."""


def _work(name: str, settings: dict[str, Any], environment: dict[str, str]) -> None:
    """A training in a process that was forked from one that has imported torch."""
    with (Path(settings["folder"]) / f"{name}.log").open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ.update(environment)
    multiprocessing.set_start_method("fork", force=True)  # the default of a process that is not started like this one
    sys.path.insert(0, str(Path(__file__).parents[3]))
    from tests.client.feed.feed_trainer import train

    train(name, settings)


@dataclass
class FeedTrainings:
    """Trainings of one account on this machine.

    Attributes:
        folder: What they write goes there.
        processes: Their processes, by name.
        settings: How they were started.
    """

    folder: Path
    processes: dict[str, ForkServerProcess] = field(default_factory=dict)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)

    def start(self, name: str, variables: dict[str, str] | None = None, **settings: Any) -> ForkServerProcess:
        """Start a training, with some variables of its own."""
        self.settings[name] = DEFAULTS | {"folder": str(self.folder)} | settings
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch.utils.data", "malletrain.client.feed"])
        environment = {"MALLETRAIN_FEED_FOLDER": str(self.feeds), "OMP_NUM_THREADS": "1", **(variables or {})}
        self.processes[name] = context.Process(target=_work, args=(name, self.settings[name], environment))
        self.processes[name].start()
        return self.processes[name]

    def start_alone(self) -> None:
        """Start a training that needs nobody else, and wait for its first batch; see `delay`."""
        self.start(ALONE, feed="", workers=0, until=ENDLESS, step=0.01)
        self.wait_batches(ALONE, 1)

    def delay(self, since: float) -> float:
        """What this machine has added to a limit since a moment, in seconds.

        The longest time between two batches of the training that needs nobody else, for each process that had to get
        a processor in turn.
        """
        return HOPS * self.max_gap(ALONE, since)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a training."""
        pid = self.processes[name].pid
        assert pid is not None
        os.kill(pid, number)

    def stop(self, *names: str) -> None:
        """End trainings after their present batch, and wait for that."""
        (self.folder / "stop").touch()
        self.wait(*names)

    @property
    def feeds(self) -> Path:
        """The folder of the feeds."""
        return self.folder / "feeds"

    def wait(self, *names: str) -> None:
        """Wait until these trainings have ended well."""
        for name in names:
            assert self.exit_code(name) == 0, self.log(name)

    def exit_code(self, name: str) -> int | None:
        """Wait for the end of a training; its exit code."""
        self.processes[name].join(PATIENCE)
        return self.processes[name].exitcode

    def log(self, name: str) -> str:
        """What a training has printed."""
        return (self.folder / f"{name}.log").read_text()

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The batches of a training."""
        path = self.folder / f"{name}.jsonl"
        text = path.read_text().rpartition("\n")[0] if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def wait_batches(self, name: str, count: int) -> None:
        """Wait until a training has done so many batches."""
        wait_until(lambda: len(self.lines(name)) >= count, PATIENCE, f"{count} batches of {name}")

    def check_exact(self, name: str) -> list[dict[str, Any]]:
        """A training has had each sample of its part of the order, once and in order. Its batches."""
        settings, lines = self.settings[name], self.lines(name)
        order = EpochOrder(settings["size"], settings["seed"])
        at = settings["start"]
        for line in lines:
            assert line["first"] == at
            assert line["indices"] == order.span(at, settings["batch"])
            at += settings["batch"]
        return lines

    def received(self, name: str) -> int:
        """Samples that a training has had from a feed."""
        lines = self.lines(name)
        return lines[-1]["received"] if lines else 0

    def wait_received(self, *names: str, more: int = 1) -> None:
        """Wait until trainings have had so many more samples from a feed."""
        for name in names:
            wanted = self.received(name) + more

            def enough(name: str = name, wanted: int = wanted) -> bool:
                return self.received(name) >= wanted

            wait_until(enough, PATIENCE, f"{wanted} samples of the feed for {name}")

    def check_complete(self, *names: str) -> None:
        """Trainings have had all of their samples."""
        for name in names:
            lines, settings = self.check_exact(name), self.settings[name]
            assert lines[-1]["first"] < settings["until"] <= lines[-1]["first"] + settings["batch"]

    def max_gap(self, name: str, since: float) -> float:
        """Longest time between two batches of a training that ended after a moment, in seconds."""
        times = [line["time"] for line in self.lines(name)]
        return max(b - a for a, b in itertools.pairwise(times) if b >= since)

    def prepared(self) -> Counter[int]:
        """How often each sample of the dataset was prepared."""
        path = self.folder / "prepared.log"
        return Counter(int(line.split()[0]) for line in path.read_text().splitlines())

    def feed_processes(self) -> list[psutil.Process]:
        """Feeds of these trainings that run, without their own processes."""
        found: dict[psutil.Process, int] = {}
        for process in psutil.process_iter():
            try:
                words = process.cmdline()
                named = any(word.startswith(str(self.feeds)) for word in words)
                if named and "malletrain.client.feeding.process" in words:
                    found[process] = process.ppid()
            except psutil.Error:
                continue
        ids = {process.pid for process in found}
        return [process for process, parent in found.items() if parent not in ids]

    def wait_feed(self) -> psutil.Process:
        """Wait until there is a feed with its processes."""

        def running() -> list[psutil.Process]:
            return [process for process in self.feed_processes() if process.children()]

        (feed,) = wait_until(running, PATIENCE, "a feed")
        return feed

    def close(self) -> None:
        """Leave nothing behind."""
        for process in self.processes.values():
            process.kill()
            process.join(10)
        for feed in self.feed_processes():
            feed.kill()
