"""The client for PBS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from malletrain.common.placeholder_script import CERTIFICATE_MARK
from malletrain.runtime.access.installation import own_user
from malletrain.scavenger.acquisition.batch_client import UNKNOWN_END, AgentCommand
from malletrain.scavenger.acquisition.pbs_answers import (
    PbsMark,
    argument_element,
    parse_job_id,
    parse_pbs_ends,
    parse_pbs_jobs,
)
from malletrain.scavenger.machine.gpu_units import node_of_unit
from malletrain.scavenger.machine.observations import NO_FACTS, NodeFacts
from malletrain.scavenger.machine.placeholders import EndedPlaceholder, ListedPlaceholder
from malletrain.scavenger.sources.base import SourceError
from malletrain.scavenger.sources.schedulers.commands import CommandFailedError, Input, RunCommand
from malletrain.scavenger.sources.schedulers.pbs_json import QSTAT_FULL

_UNKNOWN_JOB = 153
_FINISHED_JOB = 35
"""Exit status of qstat and qdel: the last eight bits of PBSE_UNKJOBID (15001) and PBSE_HISTJOBID (15139)."""


@dataclass(frozen=True)
class PbsBatchClient:
    """Placeholders as PBS jobs. The agent is the job's own program, which gets SIGTERM when the job is preempted.

    Attributes:
        run: Runs a command.
        agent: How the agent is started.
        queue: The preemptible queue.
        name: Job name of all placeholders; at most 15 characters.
        options: More options of qsub.
        log: File to which placeholders write.
        timeout_seconds: Time limit of each command.
        user: Whose jobs may be ours.
        by_gpu: Whether placeholders hold single GPUs, named by `unit_name`, rather than whole hosts.
        nice: By how much agents of single GPUs, and what they start, yield CPU time to others on their host.
    """

    run: RunCommand
    agent: AgentCommand
    queue: str
    name: str = "malletrain"
    options: tuple[str, ...] = ()
    log: str = "/dev/null"
    timeout_seconds: float = 30.0
    user: str = field(default_factory=own_user)
    by_gpu: bool = False
    nice: int = 0

    async def submit(self, node: str, seconds: float, facts: NodeFacts = NO_FACTS) -> str:
        """See `BatchClient`.

        The agent's certificate is in the job's script, which goes to the standard input of qsub, and to a file on the
        node that only the job's account can read. The agent itself is the job's program, as if by `qsub -- PROGRAM`:
        a script's shell would end first, and PBS would then look for the end of the agent every few seconds only
        (measured: the job ends 8 s after the agent, instead of 1 s).

        Even on an exclusive host, a job gets only the CPUs and GPUs that it asks for.

        The whole host is asked for, also where it has several vnodes. A single GPU comes with CPUs and memory, and its
        agent reports the host as unfit if PBS does not say which GPU it is: others would be used by main jobs.
        """
        chunk, place = self._resources_of(node, facts)
        of_gpu = ["--one-gpu", "--nice", f"{self.nice}"] if self.by_gpu else []
        program, *arguments = [*self.agent.on(node, "pbs-script", int(seconds)), *of_gpu]
        attributes = (f"executable={program}", f"argument_list={''.join(map(argument_element, arguments))}")
        script = f"#!/bin/sh\n{CERTIFICATE_MARK}{await self.agent.certificate_line(node)}\n"
        answer = await self.run(
            [
                *("qsub", "-q", self.queue, "-N", self.name, "-r", "n", "-j", "oe", "-o", self.log),
                *("-l", f"select={chunk}", "-l", f"place={place}", "-l", f"walltime={int(seconds)}"),
                *(*self.options, *(word for attribute in attributes for word in ("-W", attribute))),
            ],
            self.timeout_seconds,
            Input(script),
        )
        return parse_job_id(answer)

    async def find(self) -> Mapping[str, ListedPlaceholder]:
        """See `BatchClient`. Asked for by queue: some versions of qstat answer only the first of several job ids."""
        answer = await self.run(["qstat", *QSTAT_FULL, self.queue], self.timeout_seconds)
        return parse_pbs_jobs(answer, PbsMark(self.user, self.queue, self.name, self.agent.installation))

    async def explain(self, identifiers: Sequence[str]) -> Mapping[str, EndedPlaceholder]:
        """See `BatchClient`. PBS remembers ended jobs where `job_history_enable` is set."""
        ends: dict[str, EndedPlaceholder] = {}
        for identifier in identifiers:
            if (end := await self._end_of(identifier)) is not None:
                ends[identifier] = end
        return ends

    def _resources_of(self, node: str, facts: NodeFacts) -> tuple[str, str]:
        """What is held: a chunk of one host, and how it is placed."""
        memory = f"{facts.memory_mib}mb" if self.by_gpu and facts.memory_mib else ""
        amounts = {"ncpus": facts.cpus, "ngpus": facts.gpus, "mem": memory}
        chunk = [f"1:host={node_of_unit(node)}", *(f"{name}={amount}" for name, amount in amounts.items() if amount)]
        return ":".join(chunk), "shared" if self.by_gpu else "exclhost"

    async def _end_of(self, identifier: str) -> EndedPlaceholder | None:
        """How a placeholder has ended; None if it has not."""
        try:
            answer = await self.run(["qstat", "-x", *QSTAT_FULL, identifier], self.timeout_seconds)
        except CommandFailedError as error:
            if error.status != _UNKNOWN_JOB:
                raise
            return UNKNOWN_END
        return parse_pbs_ends(answer).get(identifier, UNKNOWN_END)

    async def cancel(self, identifiers: Sequence[str]) -> None:
        """See `BatchClient`.

        Each job gets a qdel of its own, and without `-x`: several ids, one of which had ended, made a server crash.
        """
        listed = await self.find()
        failures = []
        for identifier in identifiers:
            if identifier in listed:
                try:
                    await self.run(["qdel", identifier], self.timeout_seconds)
                except CommandFailedError as error:
                    if error.status not in (_UNKNOWN_JOB, _FINISHED_JOB):
                        failures.append(error)
        if failures:
            raise SourceError(str(failures[0]))
