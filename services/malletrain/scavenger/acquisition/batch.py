"""What is asked of a batch scheduler to hold nodes."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from malletrain.scavenger.acquisition.ledger import Phase
from malletrain.scavenger.sources.base import NO_FACTS, NodeFacts, SourceError
from malletrain.scavenger.sources.schedulers.commands import RunCommand

_SECONDS_PER_MINUTE = 60.0
Found = Mapping[str, tuple[str, Phase]]


class Batch(Protocol):
    """Submits, lists and cancels placeholders."""

    async def submit(self, node: str, seconds: float, facts: NodeFacts = NO_FACTS) -> str:
        """Submit one for the whole of a node; returns its identifier.

        Raises:
            SourceError: the scheduler does not take it.
        """

    async def find(self) -> Found:
        """All that are pending or running: identifier to node and phase.

        Raises:
            SourceError: the scheduler does not answer.
        """

    async def cancel(self, identifiers: Sequence[str]) -> None:
        """Cancel some; those that have ended do no harm.

        Raises:
            SourceError: the scheduler does not answer.
        """


@dataclass(frozen=True)
class AgentCommand:
    """How an agent is started on a node.

    Attributes:
        python: Interpreter of the training environment, as the nodes see it.
        head: HOST:PORT on which the Scavenger listens for agents, as the nodes see it.
        token: File with the installation's secret, as the nodes see it.
        listen: Address on which agents serve supervisors.
        grace_seconds: What workers get to leave by themselves.
        marks: Folder on the nodes in which a Prolog marks those that have just been taken; empty: there is none.
    """

    python: str
    head: str
    token: str
    listen: str
    grace_seconds: float
    marks: str = ""

    def on(self, node: str) -> list[str]:
        """The command for a node."""
        return [
            *(self.python, "-P", "-m", "malletrain.agent", "--node", node, "--head", self.head),
            *("--token", self.token, "--listen", self.listen, "--grace", f"{self.grace_seconds:g}"),
            *(("--marks", self.marks) if self.marks else ()),
        ]


@dataclass(frozen=True)
class SlurmBatch:
    """Placeholders as Slurm jobs: the agent is a step of srun, which gets SIGTERM at once when the job is preempted.

    A batch script alone would get it only at the end of GraceTime (measured: 27 to 34 s instead of 0.4 s).

    Attributes:
        run: Runs a command.
        agent: How the agent is started.
        partition: The preemptible partition.
        name: Name of all placeholders, by which they are found again.
        options: More options of sbatch.
        log: Where placeholders write to.
        timeout_seconds: For each command.
    """

    run: RunCommand
    agent: AgentCommand
    partition: str
    name: str = "malletrain"
    options: tuple[str, ...] = ()
    log: str = "/dev/null"
    timeout_seconds: float = 10.0

    async def submit(self, node: str, seconds: float, facts: NodeFacts = NO_FACTS) -> str:
        """See `Batch`. What an exclusive job gets unasked (GPUs) its steps do not, and of memory it gets a share."""
        minutes = max(1, math.floor(seconds / _SECONDS_PER_MINUTE))
        step = shlex.join(["srun", "--ntasks=1", "--cpu-bind=none", "--export=ALL", *self.agent.on(node)])
        answer = await self.run(
            [
                *("sbatch", "--parsable", f"--partition={self.partition}", f"--nodelist={node}", "--nodes=1"),
                *("--exclusive", "--mem=0", "--no-requeue", f"--time={minutes}", f"--job-name={self.name}"),
                *([f"--gres=gpu:{facts.gpus}"] if facts.gpus else []),
                *(f"--output={self.log}", "--open-mode=append", *self.options),
                f"--wrap=exec {step}",
            ],
            self.timeout_seconds,
        )
        identifier = answer.strip().partition(";")[0]
        if not identifier.isdigit():
            raise SourceError(f"sbatch: expected a job id, got {answer[:80]!r}")
        return identifier

    async def find(self) -> Found:
        """See `Batch`."""
        argv = ["squeue", "--noheader", "--me", f"--name={self.name}", "--format=%i|%T|%N|%n"]
        return slurm_jobs(await self.run(argv, self.timeout_seconds))

    async def cancel(self, identifiers: Sequence[str]) -> None:
        """See `Batch`."""
        await self.run(["scancel", *identifiers], self.timeout_seconds)


def slurm_jobs(text: str) -> Found:
    """From `squeue --format=%i|%T|%N|%n` to placeholders; those that are over are left out.

    Raises:
        SourceError: a line is not of that form.
    """
    found = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        words = line.strip().split("|")
        if len(words) != 4 or not words[0].isdigit():
            raise SourceError(f"squeue: expected ID|STATE|NODE|REQUESTED, got {line[:80]!r}")
        identifier, state, node, requested = words
        phase = {"PENDING": Phase.PENDING, "CONFIGURING": Phase.PENDING, "RUNNING": Phase.RUNNING}.get(state)
        if state == "COMPLETING":
            phase = Phase.ENDING
        if phase is not None:
            found[identifier] = (node or requested, phase)
    return found
