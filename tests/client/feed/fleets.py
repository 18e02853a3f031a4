"""Trainings on virtual nodes of one machine: each node has a feed, and the feeds share as those of one fleet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from malletrain.client.feeding.peer_share import BLOCK
from malletrain.client.sampling import EpochOrder
from malletrain.common.files import make_private_folder
from malletrain.common.job_folder import FEED_CERTIFICATE_FILE
from malletrain.runtime.access.pki import issue_to_fleet
from malletrain.runtime.clock import SystemClock
from tests.client.feed.running import PATIENCE, FeedTrainings
from tests.support.waiting import wait_until

FLEET = "f000001"
_SHARED = 4 * BLOCK
"""Samples that follow each other: some of each feed."""


def certificate_for(folder: Path, fleet: str = FLEET, installation: str = "state") -> Path:
    """A certificate of an installation for the feeds of a fleet, in a folder of its own."""
    text = issue_to_fleet(folder / installation, fleet, SystemClock(), 3600.0)
    path = folder / f"{installation}-{fleet}" / FEED_CERTIFICATE_FILE
    make_private_folder(path.parent)
    path.touch(0o600)
    path.write_text(text)
    return path


@dataclass
class NodesOfFleet:
    """Trainings of one fleet.

    Attributes:
        trainings: The trainings, whatever their nodes.
    """

    trainings: FeedTrainings

    @property
    def registry(self) -> Path:
        """The folder in which feeds find each other."""
        return self.trainings.folder / "registry"

    def start(self, name: str, node: str, **settings: Any) -> None:
        """Start a training on a node."""
        make_private_folder(self.registry)
        certificate = self.trainings.folder / f"state-{FLEET}" / FEED_CERTIFICATE_FILE
        if not certificate.exists():
            certificate_for(self.trainings.folder)
        variables = {
            "MALLETRAIN_FEED_FOLDER": f"{self.trainings.feeds}/{{node}}",
            "MALLETRAIN_FEED_PEERS": str(self.registry),
            "MALLETRAIN_FLEET": FLEET,
            "MALLETRAIN_JOB_DIR": str(certificate.parent),
            "MALLETRAIN_NODE": f"{node}#0",
        }
        self.trainings.start(name, variables, **settings)

    def feed_of(self, node: str) -> psutil.Process:
        """Wait until a node has a feed with its processes."""
        folder = str(self.trainings.feeds / node)

        def running() -> list[psutil.Process]:
            found = self.trainings.feed_processes()
            return [process for process in found if folder in process.cmdline() and process.children()]

        (feed,) = wait_until(running, PATIENCE, f"a feed on {node}")
        return feed

    def wait_shared(self, *names: str, owners: int = 2) -> None:
        """Wait until trainings have had the same samples, and each of these was prepared once, by one of some feeds."""
        order = EpochOrder(self.trainings.settings[names[0]]["size"], self.trainings.settings[names[0]]["seed"])
        begin = self._reached(names)

        def shared() -> bool:
            end = self._reached(names)
            if end < begin + _SHARED:
                return False
            by: dict[int, list[int]] = {}
            for line in (self.trainings.folder / "prepared.log").read_text().splitlines():
                index, process = map(int, line.split())
                by.setdefault(index, []).append(process)
            found = [by.get(index, []) for index in order.span(end - _SHARED, _SHARED)]
            return all(len(each) == 1 for each in found) and len({each[0] for each in found}) >= owners

        wait_until(shared, PATIENCE, f"samples that {names} share")

    def _reached(self, names: Iterable[str]) -> int:
        """What all of these have had."""
        lines = [self.trainings.lines(name) for name in names]
        return min((each[-1]["first"] if each else 0 for each in lines), default=0)

    def log(self) -> str:
        """What feeds have written."""
        return (self.trainings.folder / f"state-{FLEET}" / "logs" / "feed.log").read_text()
