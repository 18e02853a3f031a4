"""Fleets of the tests: their files, and what their members have noted."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.client.feed.running import FeedTrainings
from tests.system.deployment import Deployment
from tests.training.accounts import lines_in
from tests.training.trainer_settings import SIZE

TRAINER = Path(__file__).with_name("cnn_trainer.py")


@dataclass(frozen=True)
class Network:
    """A member.

    Attributes:
        name: Its name.
        channels: Its width.
        layers: Its depth.
        epochs: It has converged after so many; 0: it fails at once.
        rates: Declared rates on 1, 2… GPUs.
        step_seconds: How long it waits after each step.
    """

    name: str
    channels: int
    layers: int
    epochs: int
    rates: tuple[float, ...] = ()
    step_seconds: float = 0.0


@dataclass
class LiveFleet:
    """A fleet that was submitted.

    Attributes:
        system: The services.
        feeds: Feeds of its members.
        id: Its identifier.
        jobs: Its jobs, by the names of members.
    """

    system: Deployment
    feeds: FeedTrainings
    id: str
    jobs: dict[str, str]

    def status(self) -> dict[str, Any]:
        """What `fleet status` prints."""
        found: dict[str, Any] = self.system.json("fleet", "status", self.id)
        return found

    def states(self) -> dict[str, str]:
        """State of each member."""
        entries = self.status()["members"]
        return {entry["spec"]["name"]: entry["state"].removeprefix("JOB_STATE_") for entry in entries}

    def folder(self, name: str) -> Path:
        """The folder of a member."""
        return self.system.folder / "jobs" / self.jobs[name]

    def lines(self, name: str) -> list[dict[str, Any]]:
        """What a member has noted."""
        return lines_in(self.folder(name))

    def ended(self, *names: str) -> bool:
        """Whether members are complete."""
        states = self.states()
        return all(states[name] == "COMPLETED" for name in names or self.jobs)


def submit(
    system: Deployment,
    feeds: FeedTrainings,
    networks: list[Network],
    *options: str,
    planner: str = "fleet",
    max_nodes: int = 2,
    max_epochs: int = 6,
    cost: float = 0.002,
    feed: str = "tests.system.fleet.pictures:pictures",
) -> LiveFleet:
    """Submit members that train on pictures."""
    lines = [
        "[fleet]",
        'name = "networks"',
        f'planner = "{planner}"',
        f"max_nodes = {max_nodes}",
        "gpus_per_node = 2",
        f"samples_per_epoch = {SIZE}",
        'backend = "torchrun"',
        f'feed = "{feed}"',
        "[fleet.environment]",
        f'TEST_LOG = "{feeds.folder / "prepared.log"}"',
        f'TEST_COST = "{cost}"',
        f'MALLETRAIN_FEED_FOLDER = "{feeds.feeds}/{{node}}"',
    ]
    for one in networks:
        words = {"channels": one.channels, "layers": one.layers, "epochs": one.epochs, "step-seconds": one.step_seconds}
        command = [
            "python",
            str(TRAINER),
            *(word for name, value in words.items() for word in (f"--{name}", str(value))),
        ]
        lines += ["[[model]]", f'name = "{one.name}"', f"command = {command}", f"max_epochs = {max_epochs}"]
        lines += [f"rates = {list(one.rates)}"] if one.rates else []
    path = feeds.folder / "fleet.toml"
    path.write_text("\n".join(lines))
    done = system.command("fleet", "submit", str(path), *options, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return LiveFleet(system, feeds, found["fleetId"], {job["spec"]["name"]: job["id"] for job in found["jobs"]})
