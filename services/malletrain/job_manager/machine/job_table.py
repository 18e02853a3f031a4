"""The jobs that have not ended, with indices: a step finds the jobs that it is about without a look at all. Pure.

Copies share what neither has changed, so that the state before a step stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from malletrain.common.gpus import node_of
from malletrain.job_manager.machine.job_marks import JobMark, marks_of
from malletrain.job_manager.machine.jobs import Job


@dataclass(frozen=True)
class OwnerTally:
    """Sums over the admitted jobs of one owner.

    Attributes:
        jobs: How many there are.
        places: Places that they take: a fleet takes one.
        nodes: Nodes that they hold. A node whose GPUs members of a fleet have counts once.
        weights: How many have which weight of their own, the most that their value curves make of it.
        shares: How many have which `share_weight`.
    """

    jobs: int = 0
    places: int = 0
    nodes: int = 0
    weights: Mapping[float, int] = field(default_factory=dict)
    shares: Mapping[float, int] = field(default_factory=dict)


class JobTable(Mapping[str, Job]):
    """Jobs by identifier, in order of submission, and what is counted of them.

    Attributes:
        held: Nodes and GPUs that jobs hold.
        wanted: Those that are wanted for jobs.
        owners: What the admitted jobs of each owner come to; others are not named.
        arrays: Number of admitted jobs of each array, by its number; others are not named.
    """

    def __init__(self) -> None:
        self.held = Claims()
        self.wanted = Claims()
        self.owners: dict[str, OwnerTally] = {}
        self.arrays: dict[int, int] = {}
        self._jobs: dict[str, Job] = {}
        self._on_node: ShardedMap[frozenset[str]] = ShardedMap()
        self._marked: dict[JobMark, set[str]] = {mark: set() for mark in JobMark}
        self._own = set(JobMark)
        """Marks whose jobs are not shared with a copy."""
        self._members: dict[str, int] = {}
        """Number of admitted members of each fleet."""

    @classmethod
    def of(cls, jobs: Mapping[str, Job]) -> JobTable:
        """A table of these jobs that can be changed without changing `jobs`."""
        if isinstance(jobs, JobTable):
            return jobs._copy()
        table = cls()
        for job in jobs.values():
            table.put(job)
        return table

    @staticmethod
    def over(jobs: Mapping[str, Job]) -> JobTable:
        """A table of these jobs for reading only; `jobs` itself where it is a table."""
        return jobs if isinstance(jobs, JobTable) else JobTable.of(jobs)

    def _copy(self) -> JobTable:
        twin = JobTable.__new__(JobTable)
        twin.held, twin.wanted, twin._on_node = self.held.copy(), self.wanted.copy(), self._on_node.copy()
        twin.owners, twin._jobs = self.owners.copy(), self._jobs.copy()
        twin.arrays = self.arrays.copy()
        twin._marked, twin._members = self._marked.copy(), self._members.copy()
        twin._own = set()
        self._own = set()
        return twin

    def __getitem__(self, job_id: str) -> Job:
        """A job.

        Raises:
            KeyError: there is none of this identifier.
        """
        return self._jobs[job_id]

    def __iter__(self) -> Iterator[str]:
        """Identifiers, in order of submission."""
        return iter(self._jobs)

    def __len__(self) -> int:
        """Number of jobs."""
        return len(self._jobs)

    def __contains__(self, job_id: object) -> bool:
        """Whether there is such a job."""
        return job_id in self._jobs

    def keys(self) -> KeysView[str]:
        """Identifiers, in order of submission."""
        return self._jobs.keys()

    def values(self) -> ValuesView[Job]:
        """Jobs, in order of submission."""
        return self._jobs.values()

    def items(self) -> ItemsView[str, Job]:
        """Identifiers and jobs, in order of submission."""
        return self._jobs.items()

    def marked(self, mark: JobMark) -> list[Job]:
        """Jobs of a mark, in order of submission."""
        return self._ordered(self._marked[mark])

    def has(self, mark: JobMark) -> bool:
        """Whether a job has a mark."""
        return bool(self._marked[mark])

    def on_nodes(self, nodes: Iterable[str]) -> list[Job]:
        """Jobs that hold something of nodes, or for which it is wanted, in order of submission."""
        identifiers: set[str] = set()
        for node in nodes:
            identifiers |= self._on_node.get(node) or frozenset()
        return self._ordered(identifiers)

    def put(self, job: Job) -> None:
        """Add a job, or replace the version of it that is there."""
        before = self._jobs.get(job.id)
        self._jobs[job.id] = job
        self._index(before, job, job.id)

    def remove(self, job_id: str) -> None:
        """Remove a job.

        Raises:
            KeyError: there is none of this identifier.
        """
        self._index(self._jobs.pop(job_id), None, job_id)

    def indices(self) -> dict[str, Any]:
        """All that is kept beside the jobs, to be compared."""
        return {
            "held": self.held.as_dicts(),
            "wanted": self.wanted.as_dicts(),
            "on_node": dict(self._on_node.items()),
            "marked": self._marked,
            "owners": self.owners,
            "arrays": self.arrays,
            "members": self._members,
        }

    def _ordered(self, names: Iterable[str]) -> list[Job]:
        return sorted((self._jobs[name] for name in names), key=lambda job: job.number)

    def _index(self, before: Job | None, after: Job | None, job_id: str) -> None:
        self._mark(before, after, job_id)
        nodes = 0
        if _names(before) != _names(after):
            nodes = _replace_claims(self.held, before, after, "held")
            _replace_claims(self.wanted, before, after, "wanted")
            self._locate(before, after, job_id)
        if nodes or _share_terms(before) != _share_terms(after):
            self._count(before, after, nodes)

    def _mark(self, before: Job | None, after: Job | None, job_id: str) -> None:
        old = frozenset() if before is None else marks_of(before)
        new = frozenset() if after is None else marks_of(after)
        for mark in old ^ new:
            if mark not in self._own:
                self._marked[mark] = self._marked[mark].copy()
                self._own.add(mark)
            if mark in new:
                self._marked[mark].add(job_id)
            else:
                self._marked[mark].discard(job_id)

    def _locate(self, before: Job | None, after: Job | None, job_id: str) -> None:
        old, new = (frozenset(node_of(name) for names in _names(job) for name in names) for job in (before, after))
        for node in old - new:
            if others := (self._on_node.get(node) or frozenset()) - {job_id}:
                self._on_node[node] = others
            else:
                del self._on_node[node]
        for node in new - old:
            self._on_node[node] = (self._on_node.get(node) or frozenset()) | {job_id}

    def _count(self, before: Job | None, after: Job | None, nodes: int) -> None:
        """Replace what a job counted for its owner by what it counts now; it holds `nodes` nodes more than before."""
        for job, sign in ((before, -1), (after, 1)):
            if job is None or not job.admitted:
                continue
            tally = self.owners.get(job.owner, OwnerTally())
            tally = replace(
                tally,
                jobs=tally.jobs + sign,
                places=tally.places + self._changed_places(job, sign),
                weights=_add_to_counts(tally.weights, job.spec.most_weight, sign),
                shares=_add_to_counts(tally.shares, job.share_weight, sign),
            )
            self.owners[job.owner] = tally
            if job.array_number is not None:
                admitted = self.arrays.pop(job.array_number, 0) + sign
                if admitted:
                    self.arrays[job.array_number] = admitted
        job = after or before
        assert job is not None
        if nodes:
            tally = self.owners.get(job.owner, OwnerTally())
            self.owners[job.owner] = replace(tally, nodes=tally.nodes + nodes)
        if job.owner in self.owners and not self.owners[job.owner].jobs:
            del self.owners[job.owner]

    def _changed_places(self, job: Job, sign: int) -> int:
        if job.fleet_number is None:
            return sign
        before = self._members.pop(job.fleet_id, 0)
        if after := before + sign:
            self._members[job.fleet_id] = after
        return bool(after) - bool(before)


def _names(job: Job | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return ((), ()) if job is None else (job.held, job.wanted)


def _share_terms(job: Job | None) -> tuple[str, float, float] | None:
    """What of a job counts for its owner, besides nodes. The owner never changes."""
    return (job.owner, job.spec.most_weight, job.share_weight) if job is not None and job.admitted else None


def _add_to_counts(counts: Mapping[float, int], value: float, sign: int) -> Mapping[float, int]:
    counted = {**counts, value: counts.get(value, 0) + sign}
    return {key: count for key, count in counted.items() if count}


def _replace_claims(claims: Claims, before: Job | None, after: Job | None, name: str) -> int:
    """Have a job claim what it has now instead of what it had; returns how many nodes more that is."""
    old: frozenset[str] = frozenset() if before is None else frozenset(getattr(before, name))
    new: frozenset[str] = frozenset() if after is None else frozenset(getattr(after, name))
    lost = 0 if before is None else claims.remove(before, old - new)
    gained = 0 if after is None else claims.add(after, new - old)
    return gained - lost


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
            names: What of a job counts: the nodes that it holds, say.
        """
        claims = cls()
        for job in jobs:
            claims.add(job, names(job))
        return claims

    def copy(self) -> Claims:
        """A copy that can be changed alone."""
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
        """The holder of a node or GPU that a job can't get, maybe that job itself: "job j000001"; empty without one."""
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


_V = TypeVar("_V")

_SHARDS = 256
"""With 10,000 keys a change of a copy copies some 40 of them."""


class ShardedMap(Generic[_V]):
    """Values by name, in dictionaries that copies share until they change them."""

    def __init__(self) -> None:
        self._shards: list[dict[str, _V]] = [{} for _ in range(_SHARDS)]
        self._own = set(range(_SHARDS))

    def copy(self) -> ShardedMap[_V]:
        """A copy that can be changed alone."""
        twin: ShardedMap[_V] = ShardedMap.__new__(ShardedMap)
        twin._shards = self._shards.copy()
        twin._own = set()
        self._own = set()
        return twin

    def get(self, name: str) -> _V | None:
        """The value of a name; None if it has none."""
        return self._shards[hash(name) % _SHARDS].get(name)

    def __setitem__(self, name: str, value: _V) -> None:
        """Give a name a value."""
        self._shard(name)[name] = value

    def __delitem__(self, name: str) -> None:
        """Take a name's value.

        Raises:
            KeyError: it has none.
        """
        del self._shard(name)[name]

    def items(self) -> Iterator[tuple[str, _V]]:
        """All names with their values, in no order to rely on."""
        return (item for shard in self._shards for item in shard.items())

    def _shard(self, name: str) -> dict[str, _V]:
        """The part of the table that has a name, copied so that it may be changed."""
        number = hash(name) % _SHARDS
        if number not in self._own:
            self._shards[number] = self._shards[number].copy()
            self._own.add(number)
        return self._shards[number]
