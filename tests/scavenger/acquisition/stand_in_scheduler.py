"""A scheduler in this process: takes placeholders, refuses them, lets them end at once, or does not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto

from malletrain.runtime.clock import Clock
from malletrain.scavenger.acquisition.agent_registry import RegisteredAgent
from malletrain.scavenger.machine.observations import NO_FACTS, NodeFacts
from malletrain.scavenger.machine.placeholders import EndedPlaceholder, ListedPlaceholder, PlaceholderPhase
from malletrain.scavenger.sources.base import SourceError

REFUSAL = "sbatch ended with status 1: sbatch: error: Batch job submission failed: Invalid account"
SILENCE = "sbatch has not answered within 10 s"


class Mood(Enum):
    """What the scheduler does with what is submitted."""

    STARTS = auto()
    REFUSES = auto()
    ENDS_AT_ONCE = auto()
    IS_SILENT = auto()
    TAKES_IT_AND_IS_SILENT = auto()
    LEAVES_IT_PENDING = auto()
    STARTS_WITHOUT_AGENT = auto()


class StandInScheduler:
    """A `BatchClient`, and the registry of the agents in its jobs."""

    def __init__(self, clock: Clock) -> None:
        self.mood = Mood.STARTS
        self.jobs: dict[str, ListedPlaceholder] = {}
        self.submitted: list[tuple[float, str]] = []
        self.present: dict[str, RegisteredAgent] = {}
        self.leaving: list[RegisteredAgent] = []
        self.on_change: Callable[[], None] = lambda: None
        self._departed: list[RegisteredAgent] = []
        self._clock = clock

    @property
    def nodes(self) -> list[str]:
        """Nodes of the jobs, as often as they have one."""
        return [job.node for job in self.jobs.values()]

    async def submit(self, node: str, seconds: float, facts: NodeFacts = NO_FACTS) -> str:
        del seconds, facts
        self.submitted.append((self._clock.time(), node))
        identifier = str(len(self.submitted))
        match self.mood:
            case Mood.REFUSES:
                raise SourceError(REFUSAL)
            case Mood.IS_SILENT:
                raise SourceError(SILENCE)
            case Mood.STARTS:
                self.jobs[identifier] = ListedPlaceholder(node, PlaceholderPhase.RUNNING)
                self.report(identifier)
            case Mood.TAKES_IT_AND_IS_SILENT:
                self.jobs[identifier] = ListedPlaceholder(node, PlaceholderPhase.RUNNING)
                self.report(identifier)
                raise SourceError(SILENCE)
            case Mood.STARTS_WITHOUT_AGENT:
                self.jobs[identifier] = ListedPlaceholder(node, PlaceholderPhase.RUNNING)
            case Mood.LEAVES_IT_PENDING:
                blocked = "Slurm says PartitionDown"
                self.jobs[identifier] = ListedPlaceholder(node, PlaceholderPhase.PENDING, blocked)
        return identifier

    async def find(self) -> Mapping[str, ListedPlaceholder]:
        if self.mood is Mood.IS_SILENT:
            raise SourceError("squeue has not answered within 10 s")
        return dict(self.jobs)

    async def explain(self, identifiers: Sequence[str]) -> Mapping[str, EndedPlaceholder]:
        ended = [identifier for identifier in identifiers if identifier not in self.jobs]
        return dict.fromkeys(ended, EndedPlaceholder("FAILED (NonZeroExitCode)"))

    async def cancel(self, identifiers: Sequence[str]) -> None:
        for identifier in identifiers:
            job = self.jobs.pop(identifier, None)
            if job is not None and (agent := self.present.pop(job.node, None)) is not None:
                self._departed.append(agent)
                self.on_change()

    def leave(self, node: str) -> None:
        """The agent of a node reports that it leaves."""
        self.leaving.append(self.present.pop(node))
        self.on_change()

    def ask_to_leave(self, nodes: Iterable[str]) -> None:
        """Tell agents to leave."""
        for node in list(nodes):
            self.leave(node)

    def end_leaving(self) -> None:
        """Those that leave have gone."""
        self._departed.extend(self.leaving)
        self.leaving.clear()
        self.on_change()

    def lose(self, agent: RegisteredAgent) -> None:
        """The connection of an agent is lost."""
        self._departed.append(agent)
        self.on_change()

    def take_departed(self) -> list[RegisteredAgent]:
        departed, self._departed = self._departed, []
        return departed

    def report(self, identifier: str) -> None:
        """The agent of a job reports."""
        node = self.jobs[identifier].node
        self.present[node] = RegisteredAgent(node, "127.0.0.1:1", identifier, workers=1)
        self.on_change()
