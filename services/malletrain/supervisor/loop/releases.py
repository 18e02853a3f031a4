"""Hosts that a job is giving up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Set
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from malletrain.supervisor.loop.view import State
from malletrain.supervisor.workers.worker import Worker


class Occupants(Protocol):
    """The job's processes, by host."""

    def on(self, hosts: Set[str]) -> list[Worker]:
        """The workers that use hosts."""

    def kill(self, workers: Iterable[Worker]) -> None:
        """Kill workers."""

    def delivers(self, hosts: Set[str]) -> bool:
        """Whether workers that have ended on hosts have left a sidecar, which delivers what they have reported."""

    def sweep(self, hosts: frozenset[str]) -> None:
        """Kill all processes of the job's workers on hosts, until none is left."""


@dataclass
class Release:
    """One command to release hosts.

    Attributes:
        kill_at: When what is left there is killed, in monotonic seconds.
        done: Gets the state once nothing is left.
        killed: Whether what was left has been killed.
    """

    hosts: frozenset[str]
    kill_at: float
    done: Future[State]
    killed: bool = False


class Releases:
    """The releases that are under way."""

    def __init__(self, occupants: Occupants) -> None:
        self._occupants = occupants
        self._open: list[Release] = []

    @property
    def hosts(self) -> frozenset[str]:
        """Hosts that are being given up."""
        return frozenset(host for release in self._open for host in release.hosts)

    def add(self, release: Release) -> None:
        """Begin a release."""
        self._open.append(release)

    def kill_due(self, now: float) -> bool:
        """Kill the workers that should have left by now; whether there were any."""
        due = [
            release
            for release in self._open
            if now >= release.kill_at and not release.killed and self._occupants.on(release.hosts)
        ]
        for release in due:
            release.killed = True
            self._occupants.kill(self._occupants.on(release.hosts))
        return bool(due)

    @property
    def deadline(self) -> float:
        """The earliest time at which what is left somewhere is killed, in monotonic seconds; infinite without any."""
        return min((release.kill_at for release in self._open), default=math.inf)

    def finished(self, now: float) -> Iterator[Release]:
        """Remove the releases whose workers have gone, and kill what else of the job is left on their hosts.

        What the workers have reported is delivered before, within the time that they had to leave.
        """
        for release in list(self._open):
            if self._occupants.on(release.hosts):
                continue
            if now >= release.kill_at or not self._occupants.delivers(release.hosts):
                self._occupants.sweep(release.hosts)
                self._open.remove(release)
                yield release
