"""Hosts on their way out of a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from malletrain.supervisor.view import State
from malletrain.supervisor.worker import Worker


class Occupants(Protocol):
    """The job's processes, by host."""

    def on(self, hosts: Set[str]) -> list[Worker]:
        """The workers that use hosts."""

    def kill(self, workers: Iterable[Worker]) -> None:
        """Kill workers."""

    def sweep(self, hosts: frozenset[str]) -> None:
        """Kill what bears the job's mark on hosts, until nothing is left."""


@dataclass
class Release:
    """One command to release hosts.

    Attributes:
        hosts: The hosts.
        kill_at: When what is left there is killed, in monotonic seconds.
        done: Gets the state once nothing is left.
        killed: Whether it has been killed.
    """

    hosts: frozenset[str]
    kill_at: float
    done: Future[State]
    killed: bool = False


class Releases:
    """All that are under way."""

    def __init__(self, occupants: Occupants) -> None:
        """Begin with none."""
        self._occupants = occupants
        self._open: list[Release] = []

    @property
    def hosts(self) -> frozenset[str]:
        """Hosts that are on their way out."""
        return frozenset(host for release in self._open for host in release.hosts)

    def add(self, release: Release) -> None:
        """Begin one."""
        self._open.append(release)

    def kill_due(self, now: float) -> bool:
        """Kill what should have left by now; whether there was any."""
        due = [
            release
            for release in self._open
            if now >= release.kill_at and not release.killed and self._occupants.on(release.hosts)
        ]
        for release in due:
            release.killed = True
            self._occupants.kill(self._occupants.on(release.hosts))
        return bool(due)

    def finished(self) -> Iterator[Release]:
        """Take out those whose workers have gone, their hosts swept of all that is the job's."""
        for release in list(self._open):
            if not self._occupants.on(release.hosts):
                self._occupants.sweep(release.hosts)
                self._open.remove(release)
                yield release
