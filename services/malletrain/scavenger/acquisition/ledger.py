"""Which placeholders there are, and which should be. Pure.

A placeholder is a batch job of one node: the scheduler takes back a node by ending one, and no other work dies with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Phase(StrEnum):
    """Where a placeholder stands."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    ENDING = "ENDING"


@dataclass(frozen=True)
class Placeholder:
    """One of our batch jobs.

    Attributes:
        id: The scheduler's identifier.
        node: The node that it asks for, or holds.
        since: When it was submitted, or first seen, in seconds since the epoch.
        phase: Where it stands.
        ending_since: When it was last cancelled, or the scheduler has taken its node back.
    """

    id: str
    node: str
    since: float
    phase: Phase = Phase.PENDING
    ending_since: float = float("inf")


@dataclass(frozen=True)
class Rules:
    """When placeholders are submitted and cancelled; times in seconds.

    Attributes:
        shortest: A node that is idle for less is not worth it.
        longest: The longest time limit.
        patience: A placeholder that has not started by then never will: its node was taken before. One that has not
            ended so long after it was cancelled is cancelled again: the scheduler may not have heard.
        refusal: How long a node is left alone on which one has not started.
        surplus: How long a node may be held without work when fewer nodes are wanted.
        most_pending: Most that wait to start: pending jobs lengthen the scheduler's backfill.
        calm: How long nothing is submitted after the scheduler has taken a node back: while it waits for that one, the
            other nodes that the same job is to get look idle.
    """

    shortest: float = 120.0
    longest: float = 4 * 3600.0
    patience: float = 15.0
    refusal: float = 30.0
    surplus: float = 60.0
    most_pending: int = 64
    calm: float = 15.0


@dataclass(frozen=True)
class Orders:
    """What is to be done.

    Attributes:
        submit: Node and time limit in seconds of each placeholder to submit.
        cancel: Identifiers of those to cancel.
    """

    submit: tuple[tuple[str, float], ...] = ()
    cancel: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ledger:
    """All placeholders.

    Attributes:
        placeholders: By identifier.
        refused: Nodes that are left alone, and until when.
        idle_since: Since when held nodes have had no work, by node.
        silent_since: Since when nodes are held of whose agent nothing is heard, by node.
        taken_at: When the scheduler took a node back last.
    """

    placeholders: Mapping[str, Placeholder] = field(default_factory=dict)
    refused: Mapping[str, float] = field(default_factory=dict)
    idle_since: Mapping[str, float] = field(default_factory=dict)
    silent_since: Mapping[str, float] = field(default_factory=dict)
    taken_at: float = float("-inf")

    @property
    def nodes(self) -> frozenset[str]:
        """Nodes that are held or asked for."""
        return frozenset(entry.node for entry in self.placeholders.values())

    @property
    def running(self) -> frozenset[str]:
        """Nodes that are held."""
        return frozenset(entry.node for entry in self.placeholders.values() if entry.phase is Phase.RUNNING)

    def submitted(self, identifier: str, node: str, now: float) -> Ledger:
        """One was submitted."""
        return self._with(Placeholder(identifier, node, now))

    def refuse(self, node: str, until: float) -> Ledger:
        """None can be submitted for a node."""
        return replace(self, refused={**self.refused, node: until})

    def seen(self, found: Mapping[str, tuple[str, Phase]], now: float) -> Ledger:
        """The scheduler has told of all of ours: identifier to node and phase. Others have ended, or are adopted.

        One that was submitted a moment ago may be missing in an answer that is older.
        """
        entries = {}
        for identifier, (node, phase) in found.items():
            known = self.placeholders.get(identifier)
            if known is None:
                entries[identifier] = Placeholder(identifier, node, now, phase)
            else:
                phase = Phase.ENDING if known.phase is Phase.ENDING else phase
                entries[identifier] = replace(known, node=node or known.node, phase=phase)
        fresh = {
            identifier: entry
            for identifier, entry in self.placeholders.items()
            if identifier not in found and entry.phase is Phase.PENDING and now - entry.since < _FRESH_SECONDS
        }
        return replace(self, placeholders=entries | fresh)

    def arrived(self, identifier: str, node: str, now: float) -> Ledger:
        """The agent of one has reported."""
        known = self.placeholders.get(identifier) or Placeholder(identifier, node, now)
        if known.phase is Phase.ENDING:
            return self
        return self._with(replace(known, node=node, phase=Phase.RUNNING))

    def taken(self, identifier: str, now: float) -> Ledger:
        """The scheduler takes a node back."""
        known = self.placeholders.get(identifier)
        if known is None or known.phase is Phase.ENDING:
            return self
        return replace(self.cancelled(identifier, now), taken_at=now)

    def cancelled(self, identifier: str, now: float) -> Ledger:
        """We end one."""
        return self._with(replace(self.placeholders[identifier], phase=Phase.ENDING, ending_since=now))

    def ended(self, identifier: str) -> Ledger:
        """One has ended."""
        return replace(self, placeholders={key: entry for key, entry in self.placeholders.items() if key != identifier})

    def work(self, idle: Set[str], silent: Set[str], now: float) -> Ledger:
        """Take over which held nodes have no work, and which no agent."""
        return replace(
            self,
            idle_since={node: self.idle_since.get(node, now) for node in idle},
            silent_since={node: self.silent_since.get(node, now) for node in silent},
        )

    def _with(self, entry: Placeholder) -> Ledger:
        return replace(self, placeholders={**self.placeholders, entry.id: entry})

    # -- decisions -------------------------------------------------------------------------------------------------

    def decide(self, usable: Mapping[str, float], wanted: int, rules: Rules, now: float) -> tuple[Ledger, Orders]:
        """What to submit and what to cancel.

        Args:
            usable: Idle nodes that we may take, with the seconds for which they are expected to be so.
            wanted: How many nodes there is work for.
            rules: When.
            now: Seconds since the epoch.

        Returns:
            The ledger with those that are cancelled marked, and the orders.
        """
        ledger = replace(self, refused={node: until for node, until in self.refused.items() if until > now})
        late = [entry for entry in ledger._active(Phase.PENDING) if now - entry.since >= rules.patience]
        for entry in late:
            ledger = ledger.refuse(entry.node, now + rules.refusal)
        silent = ledger._silent(now)
        surplus = [entry for entry in ledger._surplus(wanted, rules, now) if entry not in silent]
        cancel = [*late, *silent, *surplus, *ledger._unending(rules, now)]
        for entry in cancel:
            ledger = ledger.cancelled(entry.id, now)
        held = sum(entry.phase is not Phase.ENDING for entry in ledger.placeholders.values())
        room = min(wanted - held, rules.most_pending - len(ledger._active(Phase.PENDING)))
        if now - ledger.taken_at < rules.calm:
            room = 0
        free = [
            (node, seconds)
            for node, seconds in usable.items()
            if seconds >= rules.shortest and node not in ledger.nodes and node not in ledger.refused
        ]
        free.sort(key=lambda entry: -entry[1])  # stable: those that stay longest first
        submit = tuple((node, min(seconds, rules.longest)) for node, seconds in free[: max(0, room)])
        return ledger, Orders(submit, tuple(entry.id for entry in cancel))

    def _active(self, phase: Phase) -> list[Placeholder]:
        return [entry for entry in self.placeholders.values() if entry.phase is phase]

    def _silent(self, now: float) -> list[Placeholder]:
        """Held, and yet of no use: no agent has reported."""
        running = self._active(Phase.RUNNING)
        return [entry for entry in running if now - self.silent_since.get(entry.node, now) >= _SILENT_SECONDS]

    def _unending(self, rules: Rules, now: float) -> list[Placeholder]:
        """Cancelled or taken, and still there."""
        return [entry for entry in self._active(Phase.ENDING) if now - entry.ending_since >= rules.patience]

    def _surplus(self, wanted: int, rules: Rules, now: float) -> list[Placeholder]:
        """Held for nothing: more than are wanted, and without work for a while. The newest go first."""
        running = self._active(Phase.RUNNING)
        idle = [
            entry
            for entry in reversed(running)
            if entry.node in self.idle_since and now - self.idle_since[entry.node] >= rules.surplus
        ]
        return idle[: max(0, len(running) - wanted)]


_FRESH_SECONDS = 30.0
_SILENT_SECONDS = 60.0
"""An agent reports within a second of its start, and again within a second when its connection is lost."""
