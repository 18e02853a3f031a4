"""Placeholders as jobs of Slurm."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from malletrain.scavenger.acquisition.batch_client import UNKNOWN_END, AgentCommand
from malletrain.scavenger.machine.gpu_units import node_of_unit
from malletrain.scavenger.machine.observations import NO_FACTS, NodeFacts
from malletrain.scavenger.machine.placeholders import EndedPlaceholder, ListedPlaceholder, PlaceholderPhase
from malletrain.scavenger.sources.base import SourceError
from malletrain.scavenger.sources.schedulers.commands import Input, RunCommand

_SECONDS_PER_MINUTE = 60.0
_PHASES = {
    "PENDING": PlaceholderPhase.PENDING,
    "CONFIGURING": PlaceholderPhase.PENDING,
    "RUNNING": PlaceholderPhase.RUNNING,
    "COMPLETING": PlaceholderPhase.ENDING,
}
_ENDED = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
    *("REVOKED", "TIMEOUT"),
)
"""States of Slurm's jobs that have ended."""
_END_AT_ONCE = 'scancel "$SLURM_JOB_ID" && exec sleep 5'
"""After an agent that has left in good order.

slurmctld starts the main job at once when a node reports the end of a job's Epilog. A job that ends by itself, on a
node without an Epilog, counts only at the next pass, up to `batch_sched_delay` later. A job that is cancelled while its
script still runs is always reported like an Epilog, so the placeholder cancels itself.
(slurmd `_rpc_terminate_job`, slurmctld `_slurm_rpc_epilog_complete`.)

The shell becomes `sleep` rather than starting one. A `sleep` that the shell forks while slurmd lists the processes to
be killed is not among them, and is left on the node for its five seconds, beside the main job (`proctrack/linuxproc`).
"""
_WAITING_REASONS = (
    *("None", "(null)", "Priority", "Resources", "Prolog", "Cleaning", "BeginTime", "SchedDefer"),
    *("NodeDown", "ReqNodeNotAvail", "Reservation", "Nodes required for job"),
)
"""Slurm's reasons of pending jobs that only wait for their node or their turn; some are followed by more words."""


@dataclass(frozen=True)
class SlurmBatchClient:
    """Placeholders as Slurm jobs. The agent is a step of srun, which gets SIGTERM as soon as the job is preempted.

    A batch script without srun gets it only at the end of GraceTime (measured: 27 to 34 s instead of 0.4 s).

    Attributes:
        run: Runs a command.
        agent: How the agent is started.
        partition: The preemptible partition.
        name: Job name of all placeholders.
        options: More options of sbatch.
        log: File to which placeholders write.
        timeout_seconds: Time limit of each command.
        by_gpu: Whether placeholders hold single GPUs, named by `unit_name`, rather than whole nodes.
        nice: By how much agents of single GPUs, and what they start, yield CPU time to others on their node.
    """

    run: RunCommand
    agent: AgentCommand
    partition: str
    name: str = "malletrain"
    options: tuple[str, ...] = ()
    log: str = "/dev/null"
    timeout_seconds: float = 10.0
    by_gpu: bool = False
    nice: int = 0

    async def submit(self, node: str, seconds: float, facts: NodeFacts = NO_FACTS) -> str:
        """See `BatchClient`.

        The script goes to the standard input of sbatch, and from there to the node, where the agent's certificate is
        written to the standard input of the step: no command line and no environment has it.

        GPUs and memory are asked for: a step gets none of the GPUs, and only a share of the memory, that an exclusive
        job was given without asking. A single GPU comes with CPUs and memory, and its step keeps to these CPUs where
        Slurm binds tasks (TaskPlugin).
        """
        minutes = max(1, math.floor(seconds / _SECONDS_PER_MINUTE))
        step = shlex.join(
            [
                *("srun", "--ntasks=1", "--export=ALL"),
                *([f"--cpus-per-task={facts.cpus}"] if self.by_gpu else ["--cpu-bind=none"]),
                *(["nice", "-n", f"{self.nice}"] if self.by_gpu and self.nice else []),
                *self.agent.on(node, "stdin", minutes * _SECONDS_PER_MINUTE),
            ]
        )
        line = await self.agent.certificate_line(node)
        # printf is part of every shell; were it a program, its command line would show the key.
        script = f"#!/bin/sh\nprintf '%s\\n' {line} | {step} && {_END_AT_ONCE}\n"
        answer = await self.run(
            [
                *("sbatch", "--parsable", f"--partition={self.partition}", "--nodes=1"),
                *("--no-requeue", f"--time={minutes}", f"--job-name={self.name}", *self._options_of(node, facts)),
                *(f"--output={self.log}", "--open-mode=append", *self.options),
                f"--comment={self._mark}" + (f":{node}" if self.by_gpu else ""),
            ],
            self.timeout_seconds,
            Input(script),
        )
        identifier = answer.strip().partition(";")[0]
        if not identifier.isdigit():
            raise SourceError(f"sbatch: expected a job id, got {answer[:80]!r}")
        return identifier

    async def find(self) -> Mapping[str, ListedPlaceholder]:
        """See `BatchClient`."""
        argv = ["squeue", "--noheader", *self._ours, "--format=%i|%T|%N|%n|%k|%r"]
        return parse_slurm_jobs(await self.run(argv, self.timeout_seconds), self._mark)

    async def explain(self, identifiers: Sequence[str]) -> Mapping[str, EndedPlaceholder]:
        """See `BatchClient`. Slurm remembers ended jobs for MinJobAge, by default five minutes."""
        argv = ["squeue", "--noheader", "--states=all", f"--jobs={','.join(identifiers)}", "--format=%i|%T|%r"]
        try:
            ends = parse_slurm_ends(await self.run(argv, self.timeout_seconds))
        except SourceError as error:
            if "Invalid job id" not in str(error):
                raise
            ends = {}
        explained = {identifier: ends.get(identifier, UNKNOWN_END) for identifier in identifiers}
        log = "" if self.log == "/dev/null" else f"; its output is in {self.log}"
        return {
            identifier: EndedPlaceholder(end.reason + (log if end.failed else ""), end.failed)
            for identifier, end in explained.items()
            if end is not None
        }

    async def cancel(self, identifiers: Sequence[str]) -> None:
        """See `BatchClient`. scancel itself leaves alone what is not of our user, partition and name."""
        listed = await self.find()
        if ours := [identifier for identifier in identifiers if identifier in listed]:
            await self.run(["scancel", *self._ours, *ours], self.timeout_seconds)

    def _options_of(self, node: str, facts: NodeFacts) -> list[str]:
        """Options of sbatch for what is held."""
        if not self.by_gpu:
            gpus = [f"--gres=gpu:{facts.gpus}"] if facts.gpus else []
            return [f"--nodelist={node}", "--exclusive", "--mem=0", *gpus]
        share = [f"--cpus-per-task={facts.cpus}", f"--mem={facts.memory_mib}M", "--gres=gpu:1"]
        return [f"--nodelist={node_of_unit(node)}", "--ntasks=1", *share]

    @property
    def _mark(self) -> str:
        return f"malletrain:{self.agent.installation}"

    @property
    def _ours(self) -> tuple[str, ...]:
        """What squeue and scancel may look at."""
        return ("--me", f"--partition={self.partition}", f"--name={self.name}")


def parse_slurm_jobs(text: str, mark: str) -> dict[str, ListedPlaceholder]:
    """The answer to `squeue --format=%i|%T|%N|%n|%k|%r`, without jobs that have ended and jobs of others.

    Args:
        text: What was printed.
        mark: Comment of our placeholders. That of one that holds a single GPU is followed by a colon and its unit.

    Raises:
        SourceError: a line has another form.
    """
    placeholders = {}
    for identifier, state, node, requested, comment, reason in _fields(
        text, 6, "ID|STATE|NODE|REQUESTED|COMMENT|REASON"
    ):
        phase = _PHASES.get(state)
        is_ours = comment == mark or comment.startswith(f"{mark}:")
        if phase is not None and is_ours:
            held, unit = node or requested, comment[len(mark) + 1 :]
            name = unit if unit and node_of_unit(unit) == held else held
            waits = phase is not PlaceholderPhase.PENDING or not reason or reason.startswith(_WAITING_REASONS)
            placeholders[identifier] = ListedPlaceholder(name, phase, "" if waits else f"Slurm says {reason}")
    return placeholders


def parse_slurm_ends(text: str) -> dict[str, EndedPlaceholder | None]:
    """The answer to `squeue --states=all --format=%i|%T|%r`: how jobs have ended; None for those that have not.

    Raises:
        SourceError: a line has another form.
    """
    return {
        identifier: EndedPlaceholder(f"{state} ({reason})", state != "PREEMPTED") if state in _ENDED else None
        for identifier, state, reason in _fields(text, 3, "ID|STATE|REASON")
    }


def _fields(text: str, count: int, form: str) -> list[list[str]]:
    rows = []
    for line in filter(None, map(str.strip, text.splitlines())):
        words = line.split("|", count - 1)
        if len(words) != count or not words[0].isdigit():
            raise SourceError(f"squeue: expected {form}, got {line[:80]!r}")
        rows.append(words)
    return rows
