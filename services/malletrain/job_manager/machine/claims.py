"""Who has which nodes and GPUs. A node is one job's, or its GPUs are those of members of one fleet. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from malletrain.common.gpus import node_of
from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.machine.sharded_map import ShardedMap


class Claims:
    """Nodes and GPUs that jobs have, by name."""

    def __init__(self) -> None:
        self._jobs: ShardedMap[str] = ShardedMap()
        self._fleets: ShardedMap[tuple[str, int]] = ShardedMap()
        """Fleet of a node, and how many GPUs of it members have."""

    @classmethod
    def of(cls, jobs: Iterable[Job], names: Callable[[Job], Iterable[str]]) -> Claims:
        """What several jobs have.

        Args:
            jobs: The jobs.
            names: What of a job counts: the nodes that it holds, say.
        """
        claims = cls()
        for job in jobs:
            claims.add(job, names(job))
        return claims

    def copy(self) -> Claims:
        """The same, to be changed by itself."""
        twin = Claims.__new__(Claims)
        twin._jobs, twin._fleets = self._jobs.copy(), self._fleets.copy()
        return twin

    def add(self, job: Job, names: Iterable[str]) -> int:
        """Give names to a job, taking them from their holder. Returns on how many nodes nobody held anything before."""
        first = 0
        for name in names:
            before = self._jobs.get(name)
            if before == job.id:
                continue
            self._jobs[name] = job.id
            if job.fleet_number is None:
                first += before is None
                continue
            node = node_of(name)
            _, count = self._fleets.get(node) or ("", 0)
            self._fleets[node] = job.fleet_id, count + (before is None)
            first += not count
        return first

    def remove(self, job: Job, names: Iterable[str]) -> int:
        """A job does not have these any more. Returns of how many nodes it was the last."""
        last = 0
        for name in names:
            if self._jobs.get(name) != job.id:
                continue
            del self._jobs[name]
            if job.fleet_number is None:
                last += 1
                continue
            node = node_of(name)
            fleet, count = self._fleets.get(node) or ("", 1)
            if count > 1:
                self._fleets[node] = fleet, count - 1
            else:
                del self._fleets[node]
                last += 1
        return last

    def holder(self, job: Job, name: str) -> str:
        """Who has a node or GPU so that a job can't get it, itself included: "job j000001"; empty if nobody has."""
        if owner := self._jobs.get(name):
            return f"job {owner}"
        node = node_of(name)
        if owner := self._jobs.get(node):
            return f"job {owner}"
        fleet, _ = self._fleets.get(node) or ("", 0)
        return f"fleet {fleet}" if fleet and fleet != job.fleet_id else ""

    def has_rival(self, job: Job, name: str) -> bool:
        """Whether another job has a node or GPU so that a job can't get it."""
        node = node_of(name)
        owners = {self._jobs.get(name), self._jobs.get(node)} - {None, job.id}
        fleet, _ = self._fleets.get(node) or ("", 0)
        return bool(owners) or (bool(fleet) and fleet != job.fleet_id)

    def as_dicts(self) -> tuple[dict[str, str], dict[str, tuple[str, int]]]:
        """Owners by name, and fleets with their numbers of GPUs by node."""
        return dict(self._jobs.items()), dict(self._fleets.items())
