"""The provisional rank that a booting worker is told before the next group of workers is fixed. Pure.

A worker that knows its place can run what comes before it meets the others, while those still train. So it is told the
place that it has once all that have booted join. If fewer do, those that were told something else are started anew:
code that has asked for its place must not have got a wrong answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

Hosts: TypeAlias = tuple[tuple[str, int], ...]

_NARROW_SECONDS = 30.0
_PATIENCE_SECONDS = 300.0
"""How long workers that are prepared wait for others that still prepare. They may read a data set meanwhile."""


@dataclass(frozen=True)
class Promise:
    """The hosts of the next group or generation, as new workers are told. Times are monotonic seconds.

    Attributes:
        hosts: Hosts and slots in rank order; empty: nothing is told.
        basis: The hosts that train, and those that are commanded, when these were chosen.
        since: When they were chosen.
        until: When they are given up again, for more may have booted.
    """

    hosts: Hosts = ()
    basis: tuple[Hosts, Hosts] = field(default=((), ()))
    since: float = float("-inf")
    until: float = float("inf")

    def after_look(self, basis: tuple[Hosts, Hosts], booted: Hosts, now: float) -> Promise:
        """The state at a time. What has been told stays, as long as the same hosts train and are commanded.

        Args:
            basis: The hosts that train, and those that are commanded.
            booted: The hosts of the next group as far as workers have booted; empty while more are waited for.
            now: The time.
        """
        if basis == self.basis and self.hosts and now < self.until:
            return self
        whole = {host for host, _ in booted} >= {host for host, _ in basis[1]}
        return Promise(booted, basis, now, float("inf") if whole else now + _NARROW_SECONDS)

    def narrowed(self, hosts: Hosts, now: float) -> Promise:
        """Go on with fewer hosts, for a while: the workers of the others do not come."""
        return replace(self, hosts=hosts, until=now + _NARROW_SECONDS)

    def is_patient(self, now: float) -> bool:
        """Whether workers that still prepare are waited for."""
        return now < self.since + _PATIENCE_SECONDS
