"""Which workers belong to an elastic group, which are to join it, which are to leave it. Pure.

A group changes in one step: every member that lives comes back to the rendezvous, and then a new group is formed of
those that stay and those that are warm. This module decides when a change is due and what the next group is; it knows
nothing of processes, sockets or Horovod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from malletrain.supervisor.workers.slot import Slot
from malletrain.supervisor.workers.worker_exit import Consequence, ExitFacts, Verdict, WorkerExit, WorkerRole, not_warm


@dataclass(frozen=True)
class Formation:
    """A new group.

    Attributes:
        epoch: Grows with every formation.
        hosts: Hosts and their slots in rank order: those that stay first, so that rank 0 has the state.
        added: Slots whose worker is started with this group.
        removed: Slots of the old group that are not in the new one.
    """

    epoch: int
    hosts: tuple[tuple[str, int], ...]
    added: tuple[Slot, ...]
    removed: tuple[Slot, ...]


@dataclass(frozen=True)
class Membership:
    """Which workers form a job's group, and which are to join or leave it.

    Attributes:
        min_hosts: Fewest hosts that a first group is formed of, unless fewer are commanded.
        sequence: Sequence of the newest command.
        commanded: Hosts and slots that the job shall use.
        hosts: Hosts and slots of the present group, in rank order; empty if there is none.
        epoch: Number of the present group; 0 before the first.
        warm: Slots outside the group whose worker is warm: it has got ready for the place that it was promised.
        ready: Members that have come back to the rendezvous.
        dead: Members whose process has ended.
        joining: Members that were started with the present group and have not yet registered.
        silent: Members that have not registered, and count as training because they have lived for a while. They can't
            be asked to come back for another group.
        early: Dead members other than rank 0 that ended with exit status 0 by themselves.
        closing: Whether the present group ends, so that no worker joins it any more.
        warm_by: Until when a growth waits for all its new workers, in seconds; then those that are warm join alone.
        confirmed_sequence: Newest command whose hosts are exactly those of a complete group.
    """

    min_hosts: int = 1
    sequence: int = 0
    commanded: Mapping[str, int] = field(default_factory=dict)
    hosts: tuple[tuple[str, int], ...] = ()
    epoch: int = 0
    warm: frozenset[Slot] = frozenset()
    ready: frozenset[Slot] = frozenset()
    dead: frozenset[Slot] = frozenset()
    joining: frozenset[Slot] = frozenset()
    silent: frozenset[Slot] = frozenset()
    early: frozenset[Slot] = frozenset()
    closing: bool = False
    warm_by: float = 0.0
    confirmed_sequence: int = 0

    @property
    def members(self) -> tuple[Slot, ...]:
        """Slots of the present group, in rank order."""
        return tuple(slot for host, slots in self.hosts for slot in slots_of(host, slots))

    @property
    def living(self) -> frozenset[Slot]:
        """Members whose process runs."""
        return frozenset(self.members) - self.dead

    @property
    def has_heir(self) -> bool:
        """Whether a member that lives is to stay, so that it can hand on the state."""
        return any(host in self.commanded for host, _ in self._unhurt)

    @property
    def lost(self) -> bool:
        """Whether no worker is left that could hand on the state: no host of the group has all its workers."""
        return bool(self.hosts) and not self._unhurt

    @property
    def stuck(self) -> bool:
        """Whether all living members wait at the rendezvous."""
        return bool(self.living) and self.ready >= self.living

    @property
    def winding_down(self) -> bool:
        """Whether the training seems to be over though rank 0 has not ended yet: others have ended well.

        It is not over if a member that lives comes back for another group.
        """
        return bool(self.early) and not self.ready and self.members[0] in self.living

    @property
    def laggards(self) -> frozenset[Slot]:
        """Members that have not come back while others wait for them at the rendezvous."""
        return self.living - self.ready if self.ready else frozenset()

    @property
    def _unhurt(self) -> tuple[tuple[str, int], ...]:
        dead = {slot.host for slot in self.dead}
        return tuple(entry for entry in self.hosts if entry[0] not in dead)

    @property
    def complete(self) -> bool:
        """Whether every member of the present group takes part in it."""
        return bool(self.hosts) and not (self.joining or self.dead or self.ready)

    @property
    def fulfilled(self) -> bool:
        """Whether the present group is complete and exactly what is commanded."""
        return self.complete and dict(self.hosts) == dict(self.commanded)

    @property
    def confirmed_hosts(self) -> tuple[str, ...]:
        """Hosts that are commanded and whose members all take part in the present group."""
        if self.ready:
            return ()
        out = {slot.host for slot in self.joining | self.dead}
        return tuple(host for host, _ in self.hosts if host in self.commanded and host not in out)

    def target(self, now: float) -> tuple[tuple[str, int], ...]:
        """The hosts of the group that should be: those that may stay, then new ones once all are warm or time is up.

        If none may stay, the first living host stays until the next change: only a survivor can hand on the state. A
        group that is closing keeps all hosts that have lost no worker.
        """
        if self.closing:
            return self._unhurt
        staying = tuple(entry for entry in self._unhurt if entry[0] in self.commanded)
        added = tuple(
            (host, slots)
            for host, slots in self.commanded.items()
            if (host, slots) not in staying and self._is_warm(host, slots)
        )
        missing = len(staying) + len(added) < len(self.commanded)
        begins_short = not self.hosts and len(added) < self.min_hosts
        if missing and (now < self.warm_by or begins_short):
            added = ()
        return (staying or self._unhurt[:1]) + added

    def target_of(self, booted: Iterable[Slot], now: float) -> tuple[tuple[str, int], ...]:
        """The hosts of the next group if all workers that have booted get warm; see `target`."""
        return replace(self, warm=frozenset(booted)).target(now)

    def _is_warm(self, host: str, slots: int) -> bool:
        return self.warm >= frozenset(slots_of(host, slots))

    def change_due(self, now: float) -> bool:
        """Whether the present group differs from the one that should be."""
        target = self.target(now)
        unwanted = self.closing or self.winding_down
        return bool(target) and not unwanted and set(target) != set(self.hosts)

    def can_form(self, now: float) -> bool:
        """Whether a new group can be formed: all living members have come back, or there is no group yet."""
        if not self.target(now):
            return False
        if not self.hosts:
            return True
        return bool(self.ready) and self.ready >= self.living

    def form(self, now: float) -> tuple[Membership, Formation]:
        """Form the new group. Call only when `can_form`."""
        target = self.target(now)
        survivors = self.ready - self.dead
        slots = tuple(slot for host, count in target for slot in slots_of(host, count))
        added = tuple(slot for slot in slots if slot not in survivors)
        removed = tuple(slot for slot in self.members if slot not in slots)
        formation = Formation(self.epoch + 1, target, added, removed)
        state = replace(
            self,
            hosts=target,
            epoch=self.epoch + 1,
            warm=self.warm - set(added),
            ready=frozenset(),
            dead=frozenset(),
            early=frozenset(),
            joining=frozenset(added),
            silent=frozenset(),
        )
        return state.settled(), formation

    def settled(self) -> Membership:
        """The state with its confirmation brought up to date."""
        if self.fulfilled:
            return replace(self, confirmed_sequence=max(self.sequence, self.confirmed_sequence))
        return self

    def command(self, sequence: int, hosts: Mapping[str, int], warm_by: float) -> Membership:
        """Take over a command; one that is not newer than the last is ignored."""
        if sequence <= self.sequence:
            return self
        return replace(self, sequence=sequence, commanded=dict(hosts), warm_by=warm_by).settled()

    def release(self, hosts: frozenset[str]) -> Membership:
        """Take hosts out of what is commanded."""
        left = {host: n for host, n in self.commanded.items() if host not in hosts}
        return replace(self, commanded=left).settled()

    def closed(self) -> Membership:
        """Let the present group end: members that wait at the rendezvous get back to work, to end well."""
        return replace(self, closing=True)

    def dissolved(self) -> Membership:
        """Forget the present group; the next one is formed of new workers only."""
        nobody: frozenset[Slot] = frozenset()
        none = replace(self, hosts=(), ready=nobody, dead=nobody, early=nobody, joining=nobody, silent=nobody)
        return replace(none, closing=False)

    def cooled(self, slots: Iterable[Slot]) -> Membership:
        """The workers of these slots are ended, for others."""
        return replace(self, warm=self.warm - set(slots))

    def became_warm(self, slot: Slot) -> Membership:
        """The worker of a slot is warm."""
        return replace(self, warm=self.warm | {slot})

    def came_back(self, slot: Slot) -> Membership:
        """A member has come back to the rendezvous."""
        return replace(self, ready=self.ready | {slot}) if slot in self.living else self

    def registered(self, slot: Slot) -> Membership:
        """A member that was started with the present group takes part in it."""
        return replace(self, joining=self.joining - {slot}, silent=self.silent - {slot}).settled()

    def lived(self) -> Membership:
        """The present group has lived for a while: if none of its members has registered, they do not know how.

        Where some have registered, the others are on their way to them.
        """
        if not self.joining or self.joining != self.living:
            return self
        return replace(self, joining=frozenset(), silent=self.joining).settled()

    def ended(self, slot: Slot, *, early: bool = False) -> Membership:
        """A slot's process has ended.

        Args:
            early: Whether it is not rank 0's, and ended with exit status 0 by itself.
        """
        state = replace(
            self,
            warm=self.warm - {slot},
            ready=self.ready - {slot},
            joining=self.joining - {slot},
            silent=self.silent - {slot},
        )
        if slot not in self.members:
            return state
        return replace(state, dead=state.dead | {slot}, early=state.early | ({slot} if early else frozenset()))


def slots_of(host: str, count: int) -> tuple[Slot, ...]:
    """The slots of a host."""
    return tuple(Slot(host, local_rank) for local_rank in range(count))


def elastic_role(ended: WorkerExit, membership: Membership) -> WorkerRole:
    """What a worker was to its job.

    Args:
        ended: The worker.
        membership: The membership before its end.
    """
    if ended.slot in membership.living:
        return WorkerRole.RANK_ZERO if ended.slot == membership.members[0] else WorkerRole.MEMBER
    # A script that ends before it looks for the others has no rank, and needs none.
    return WorkerRole.RANK_ZERO if ended.started and not membership.hosts else WorkerRole.NEW_WORKER


def elastic_asked(ended: WorkerExit, membership: Membership, facts: ExitFacts) -> bool:
    """Whether a worker had been asked to leave.

    A rescale in which its node stays asks it to come back to the rendezvous, not to leave. A batch system that takes a
    node back may signal the workers there itself, and scripts often agree to stop together.

    Args:
        ended: The worker.
        membership: The membership before its end.
        facts: What the event loop knows.
    """
    if facts.asked or membership.closing or ended.slot.host not in membership.commanded:
        return True
    hosts = {ended.slot.host, *(host for host, _ in membership.hosts)}
    return ended.code == 0 and bool(hosts & facts.leaving)


def elastic_failure(ended: WorkerExit, membership: Membership, count: int) -> Verdict:
    """What the failure of a worker means for the job.

    Args:
        ended: The worker.
        membership: The membership after its end.
        count: How often its slot has failed lately, this time included.
    """
    if membership.hosts:
        return Verdict(Consequence.NOTE, ended.how)  # the others go on, unless they are found to be lost, too
    if ended.started or ended.going:
        return Verdict(Consequence.FAIL, ended.how)
    return not_warm(ended, count)


def left_with_hosts(membership: Membership, leaving: frozenset[str]) -> bool:
    """Whether the workers may have ended because hosts of theirs were taken.

    Args:
        membership: The membership after their end.
        leaving: Nodes whose agents have reported that they are wanted back.
    """
    return any(host not in membership.commanded or host in leaving for host, _ in membership.hosts)
