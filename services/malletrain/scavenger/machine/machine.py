"""The Scavenger as a machine: stimuli in, effects out; without I/O, and without a clock of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from malletrain.runtime.kernel.recording import Moment
from malletrain.scavenger.machine.drains import DrainSet
from malletrain.scavenger.machine.idle_set import IdleEvent, IdleNode, IdleSet
from malletrain.scavenger.machine.observations import Observation
from malletrain.scavenger.machine.quarantine import Quarantine
from malletrain.scavenger.machine.stays import StayEstimator
from malletrain.scavenger.machine.stimuli import (
    AnnounceEvent,
    ClockMoved,
    DrainsChanged,
    Due,
    Effect,
    ExcludeNodes,
    FailuresReported,
    NodeFailure,
    NodesObserved,
    NodesReclaimed,
    NoteQuarantine,
    QuarantineEnded,
    StaysRequested,
    Stimulus,
    StoreCooldowns,
    StoreQuarantine,
)

Effects = tuple[Effect, ...]

CHECK = "the check before its first worker"
NOTHING_OBSERVED = Observation(0.0, {})


@dataclass
class ScavengerMachine:
    """Decides which nodes may be used, and learns how long they stay. The state changes in place.

    Attributes:
        idle: The idle set.
        stays: Learns how long nodes stay idle.
        quarantine: Counts failures of work on nodes.
        event_time: When the last event happened, in seconds since the epoch; before the first, when the service began.
        newest: What the source told last.
        seen: Whether it has told anything yet.
        revision: Number of the last event.
    """

    idle: IdleSet
    stays: StayEstimator
    quarantine: Quarantine
    event_time: float = 0.0
    newest: Observation = NOTHING_OBSERVED
    seen: bool = False
    revision: int = 0

    @property
    def drains(self) -> DrainSet:
        """What operators have taken out of use."""
        return self.idle.drains

    def may_be_in_use(self, name: str) -> bool:
        """Whether JobManager may know the node: it has counted as idle, or nothing has been seen since the start."""
        return self.idle.was_announced(name) or not self.seen

    def expected_stay(self, node: IdleNode, now: float) -> float:
        """How long a node that counts as idle is expected to stay so, in seconds, as of the last `StaysRequested`.

        Args:
            now: Seconds since the epoch.
        """
        end = self.newest.ends.get(node.name)
        return self.stays.current.expected_stay(now - node.idle_since, None if end is None else end - now)

    def advance(self, stimulus: Stimulus, now: Moment) -> Effects:
        """Handle a stimulus; returns what is to be done, in this order."""
        time = now.unix_seconds
        match stimulus:
            case NodesObserved():
                return self._observe(stimulus.observation, time)
            case NodesReclaimed():
                return (*self._put_out(stimulus.nodes, stimulus.cooldown_seconds, time, "reclaim"), StoreCooldowns())
            case DrainsChanged():
                event = self.idle.drain(time, stimulus.drains)
                return (*self._announce(event, time, stimulus.cause, time), ExcludeNodes())
            case QuarantineEnded():
                return self._end_quarantine(stimulus.nodes, time)
            case FailuresReported():
                return self._count_failures(stimulus, time)
            case ClockMoved():
                for timed in (self.idle, self.stays, self.quarantine):
                    timed.move_times(stimulus.seconds)
                return (ExcludeNodes(), StoreQuarantine(), StoreCooldowns())
            case StaysRequested():
                self._learn(time)
                return ()
            case Due():
                return self._announce(self.idle.tick(time), time, "debounce", time)

    def _observe(self, observation: Observation, now: float) -> Effects:
        just_ended = observation.ended and not self.newest.ended
        if not observation.stale:  # else nodes are missing whose fragments have not ended
            watched = observation.idle if observation.watched is None else observation.watched
            self.stays.observe(observation.time, watched)
        self.newest, self.seen = observation, True
        event = self.idle.observe(observation.time, observation.idle)
        announced = self._announce(event, observation.time, "source", now, even_empty=just_ended)
        return (*announced, *self._leave_out(observation.unfit, now))

    def _put_out(self, nodes: Sequence[str], seconds: float, now: float, cause: str) -> Effects:
        return self._announce(self.idle.reclaim(now, nodes, seconds), now, cause, now)

    def _end_quarantine(self, nodes: tuple[str, ...] | None, now: float) -> Effects:
        """Nodes that were quarantined may join at once."""
        lifted = self.quarantine.lift(nodes, now)
        if not lifted:
            return ()
        announced = self._announce(self.idle.lift(now, lifted), now, "resume", now)
        return (*announced, ExcludeNodes(), StoreQuarantine(), StoreCooldowns())

    def _count_failures(self, report: FailuresReported, now: float) -> Effects:
        """Nodes on which work keeps failing leave, as if reclaimed."""
        effects: list[Effect] = []
        for failure in report.failures:
            seconds = self.quarantine.failed(failure.node, now, failure.reason, failure.by)
            if seconds > 0:
                effects += self._put_out([failure.node], seconds, now, "quarantine")
                effects.append(NoteQuarantine(failure, seconds))
        return (*effects, ExcludeNodes(), StoreQuarantine(), StoreCooldowns())

    def _leave_out(self, unfit: Mapping[str, str], now: float) -> Effects:
        """Nodes that have failed their check are left out until they are checked again."""
        effects: list[Effect] = []
        for node, reason in sorted(unfit.items()):
            seconds = self.quarantine.check_failed(node, now, reason, CHECK)
            effects += self._put_out([node], seconds, now, "quarantine")
            effects.append(NoteQuarantine(NodeFailure(node, reason, CHECK), seconds, is_check=True))
        return (*effects, ExcludeNodes(), StoreQuarantine(), StoreCooldowns()) if effects else ()

    def _announce(
        self, event: IdleEvent, unix_seconds: float, cause: str, now: float, *, even_empty: bool = False
    ) -> Effects:
        # The end of a trace is announced even if no node moves: followers have nothing more to wait for.
        if not (event or even_empty):
            return ()
        self._learn(now)
        self.revision += 1
        self.event_time = unix_seconds
        return (AnnounceEvent(event, self.revision, unix_seconds, cause),)

    def _learn(self, now: float) -> None:
        """Bring expected stays up to date, where there is a node to tell one of."""
        if self.idle.since():
            self.stays.learned(now)
