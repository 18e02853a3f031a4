"""Who has which nodes and GPUs. A node is one job's, or its GPUs are those of members of one fleet. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from malletrain.common.gpus import node_of
from malletrain.job_manager.jobs import Job


class Claims:
    """Nodes and GPUs that jobs have, by name."""

    def __init__(self) -> None:
        """Begin without any."""
        self._jobs: dict[str, str] = {}
        self._fleets: dict[str, tuple[str, int]] = {}
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

    def add(self, job: Job, names: Iterable[str]) -> None:
        """A job has these, too."""
        if job.fleet_number is None:
            self._jobs.update(dict.fromkeys(names, job.id))
            return
        for name in names:
            if self._jobs.get(name) != job.id:
                self._jobs[name] = job.id
                _, count = self._fleets.get(node_of(name), ("", 0))
                self._fleets[node_of(name)] = job.fleet_id, count + 1

    def remove(self, job: Job, names: Iterable[str]) -> None:
        """A job does not have these any more."""
        for name in names:
            if self._jobs.get(name) != job.id:
                continue
            del self._jobs[name]
            if job.fleet_number is not None:
                fleet, count = self._fleets.pop(node_of(name))
                if count > 1:
                    self._fleets[node_of(name)] = fleet, count - 1

    def holder(self, job: Job, name: str) -> str:
        """Who has a node or GPU so that a job can't get it, itself included: "job j000001"; empty if nobody has."""
        if name in self._jobs:
            return f"job {self._jobs[name]}"
        node = node_of(name)
        if node in self._jobs:
            return f"job {self._jobs[node]}"
        fleet, _ = self._fleets.get(node, ("", 0))
        return f"fleet {fleet}" if fleet and fleet != job.fleet_id else ""
