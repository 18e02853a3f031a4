"""Which generation of workers trains, when it is to leave, and what the next one is. Pure.

For launchers whose workers can't change their scale while they run: at every change all members save and leave, and a
new generation goes on from the checkpoint. Its workers are warm before the old generation is asked to leave. So a
change costs the time to write and read a checkpoint, but not a boot.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

from malletrain.supervisor.elastic.membership import slots_of
from malletrain.supervisor.workers.promise import Hosts
from malletrain.supervisor.workers.slot import Slot
from malletrain.supervisor.workers.worker_exit import Consequence, ExitFacts, Verdict, WorkerExit, WorkerRole, not_warm


@dataclass(frozen=True)
class GenerationState:
    """The present generation of a job, and what the next one waits for.

    Attributes:
        min_hosts: Fewest hosts that a generation begins with, unless fewer are commanded.
        hosts_per_replica: Hosts that one copy of the model is divided among: a generation has whole replicas only.
        fixed_replicas: Whether the hosts of a replica must be those that follow each other in the command, since they
            are near each other; otherwise any hosts make one.
        sequence: Sequence of the newest command.
        commanded: Hosts and slots that the job shall use.
        replicas: With `fixed_replicas` the hosts of each replica by the newest command, those since released included.
        hosts: Hosts and slots of the present generation, in rank order; empty between two generations.
        epoch: Number of the newest generation; 0 before the first.
        members: Slots of the present generation that had a process, in rank order.
        gone: Members whose process has ended.
        started: Members in which the job's own code runs.
        early: Whether a member other than rank 0 has ended with exit status 0 by itself.
        leaving: Whether the present generation has been asked to save and leave.
        leave_by: When members that have not left are killed, in monotonic seconds.
        extended: Whether they have been given more time already.
        warm_by: Until when a change waits for the workers of all slots to be warm; then it is made with those that
            are.
        confirmed_sequence: Newest command whose hosts are exactly those of a generation that has started.
    """

    min_hosts: int = 1
    hosts_per_replica: int = 1
    fixed_replicas: bool = False
    sequence: int = 0
    commanded: Mapping[str, int] = field(default_factory=dict)
    replicas: tuple[tuple[str, ...], ...] = ()
    hosts: Hosts = ()
    epoch: int = 0
    members: tuple[Slot, ...] = ()
    gone: frozenset[Slot] = frozenset()
    started: frozenset[Slot] = frozenset()
    early: bool = False
    leaving: bool = False
    leave_by: float = float("inf")
    extended: bool = False
    warm_by: float = 0.0
    confirmed_sequence: int = 0

    @property
    def living(self) -> tuple[Slot, ...]:
        """Members whose process runs, in rank order."""
        return tuple(slot for slot in self.members if slot not in self.gone)

    @property
    def complete(self) -> bool:
        """Whether every member of the present generation trains."""
        return bool(self.members) and not (self.leaving or self.gone) and self.started >= frozenset(self.members)

    @property
    def winding_down(self) -> bool:
        """Whether the training seems to be over though rank 0 has not ended yet: others have ended well."""
        return self.early and not self.leaving and bool(self.living) and self.living[0] == self.members[0]

    @property
    def fulfilled(self) -> bool:
        """Whether the present generation is complete and exactly what is commanded."""
        return self.complete and dict(self.hosts) == dict(self.commanded)

    @property
    def waits_for_more(self) -> bool:
        """Whether the present generation trains on until a larger one is ready, so that this may take its time."""
        changes = dict(self.hosts) != dict(self.commanded) and {host for host, _ in self.hosts} <= self.commanded.keys()
        return bool(self.living) and not (self.gone or self.leaving or self.winding_down) and changes

    @property
    def confirmed_hosts(self) -> tuple[str, ...]:
        """Hosts that are commanded and on which the present generation trains."""
        return tuple(host for host, _ in self.hosts if host in self.commanded) if self.complete else ()

    def target(self, ready: Set[Slot], now: float) -> Hosts:
        """The hosts of the next generation: those whose workers are warm; empty while more of them are waited for.

        Others are waited for until `warm_by`, and then for as long as they are needed to train at all.

        Args:
            ready: Slots that need no process, or whose next process is warm.
            now: Monotonic seconds.
        """
        wanted = self._whole(tuple(self.commanded.items()))
        standing = self._whole(tuple(entry for entry in wanted if ready >= frozenset(slots_of(*entry))))
        enough = now >= self.warm_by and len(standing) >= self.min_hosts
        return standing if standing == wanted or enough else ()

    def _whole(self, hosts: Hosts) -> Hosts:
        """As many of these hosts as whole replicas have: after a loss some have no part in one."""
        if not self.fixed_replicas:
            return hosts[: len(hosts) - len(hosts) % self.hosts_per_replica]
        slots = dict(hosts)
        present = (replica for replica in self.replicas if slots.keys() >= set(replica))
        return tuple((host, slots[host]) for replica in present for host in replica)

    def change_due(self, ready: Set[Slot], now: float) -> bool:
        """Whether the present generation is to be asked to leave for another one."""
        target = self.target(ready, now)
        unwanted = self.leaving or self.winding_down
        if not (self.living and target) or unwanted or dict(target) == dict(self.hosts):
            return False
        # Not for fewer hosts, or for as many others, only because their workers are warm and those here are not.
        keeps = {host for host, _ in self.hosts} <= self.commanded.keys()
        return not keeps or dict(target) == dict(self.commanded) or len(target) > len(self.hosts)

    def due(self, ready: Set[Slot], now: float) -> Hosts:
        """The hosts of a generation that would take the place of the present one; empty while none would."""
        replaceable = not self.living or self.leaving or self.winding_down
        return self.target(ready, now) if replaceable or self.change_due(ready, now) else ()

    def can_form(self, ready: Set[Slot], now: float) -> bool:
        """Whether the next generation can begin: the one before has left, and workers are warm."""
        return not self.living and bool(self.target(ready, now))

    def overdue(self, now: float) -> bool:
        """Whether members that were asked to leave have had their time."""
        return self.leaving and bool(self.living) and now >= self.leave_by

    # -- what happens ----------------------------------------------------------------------------------------------

    def command(self, sequence: int, hosts: Mapping[str, int], warm_by: float) -> GenerationState:
        """Take over a command; one that is not newer than the last is ignored."""
        if sequence <= self.sequence:
            return self
        names, size = tuple(hosts), self.hosts_per_replica
        starts = range(0, len(names) - len(names) % size, size) if self.fixed_replicas else ()
        replicas = tuple(names[first : first + size] for first in starts)
        return replace(self, sequence=sequence, commanded=dict(hosts), replicas=replicas, warm_by=warm_by).settled()

    def release(self, hosts: Set[str]) -> GenerationState:
        """Take hosts out of what is commanded."""
        left = {host: slots for host, slots in self.commanded.items() if host not in hosts}
        return replace(self, commanded=left).settled()

    def leave(self, leave_by: float) -> GenerationState:
        """Ask the present generation to leave; if it was asked before, the earlier limit holds."""
        return replace(self, leaving=True, leave_by=min(leave_by, self.leave_by))

    def extend(self, leave_by: float) -> GenerationState:
        """Give members that are saving more time, once."""
        return replace(self, leave_by=leave_by, extended=True)

    def form(self, ready: Set[Slot], members: tuple[Slot, ...], now: float) -> GenerationState:
        """Begin the next generation. Call only when `can_form`.

        Args:
            ready: As for `target`.
            members: The slots that get a process, in rank order.
            now: Monotonic seconds.
        """
        nobody: frozenset[Slot] = frozenset()
        return replace(
            self,
            hosts=self.target(ready, now),
            epoch=self.epoch + 1,
            members=members,
            gone=nobody,
            started=nobody,
            early=False,
            leaving=False,
            leave_by=float("inf"),
            extended=False,
        )

    def start(self, slot: Slot) -> GenerationState:
        """The job's own code runs in a member."""
        return replace(self, started=self.started | {slot}).settled() if slot in self.members else self

    def ended(self, slot: Slot, warm_by: float, *, early: bool = False) -> GenerationState:
        """A member's process has ended.

        Args:
            warm_by: Until when the next generation waits for all its slots, if it was the last one.
            early: Whether it is not rank 0's, and ended with exit status 0 by itself.
        """
        state = replace(self, gone=self.gone | {slot}, early=self.early or early) if slot in self.members else self
        if state.members and not state.living:
            return replace(state, hosts=(), members=(), warm_by=max(state.warm_by, warm_by))
        return state

    def settled(self) -> GenerationState:
        """The state with its confirmation brought up to date."""
        if self.fulfilled:
            return replace(self, confirmed_sequence=max(self.sequence, self.confirmed_sequence))
        return self


def member_role(ended: WorkerExit, generation: GenerationState) -> WorkerRole:
    """What a member of a generation was to its job."""
    return WorkerRole.RANK_ZERO if generation.members[:1] == (ended.slot,) else WorkerRole.MEMBER


def member_asked(ended: WorkerExit, generation: GenerationState, facts: ExitFacts) -> bool:
    """Whether a member had been asked to leave.

    While the next generation only gets ready, no member has been asked for anything. A batch system that takes a node
    back may signal the workers there itself, and scripts often agree to stop together.
    """
    if facts.asked or generation.leaving:
        return True
    hosts = {host for host, _ in generation.hosts}
    return ended.code == 0 and bool(hosts & facts.leaving)


def next_role(ended: WorkerExit, generation: GenerationState) -> WorkerRole:
    """What a worker of the next generation was to its job.

    Between two generations, a script that ends before it looks for the others has no rank, and needs none.
    """
    return WorkerRole.RANK_ZERO if ended.started and not generation.living else WorkerRole.NEW_WORKER


def next_asked(ended: WorkerExit, facts: ExitFacts) -> bool:
    """Whether a worker of the next generation had been asked to leave."""
    return facts.asked or (ended.code == 0 and ended.slot.host in facts.leaving)


def next_failure(ended: WorkerExit, generation: GenerationState, count: int) -> Verdict:
    """What the failure of a worker of the next generation means for the job."""
    if generation.living:
        return Verdict(Consequence.NOTE, ended.how)
    return not_warm(ended, count)
