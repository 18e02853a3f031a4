"""Placeholders as PBS jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from malletrain.scavenger.acquisition.batch import AgentCommand, Found
from malletrain.scavenger.acquisition.ledger import Phase
from malletrain.scavenger.sources.base import NO_FACTS, NodeFacts, SourceError
from malletrain.scavenger.sources.schedulers.commands import RunCommand

_IDENTIFIER = re.compile(r"\d+\.\S+\Z")
_VNODE = re.compile(r"\(?([^:+()]+)")
_REQUESTED = re.compile(r"vnode=([^:+]+)")
_PHASES = {"Q": Phase.PENDING, "H": Phase.PENDING, "W": Phase.PENDING, "R": Phase.RUNNING, "E": Phase.ENDING}


@dataclass(frozen=True)
class PbsBatch:
    """The agent is the job's own program: PBS sends SIGTERM to it when the job is preempted. See `Batch`.

    Attributes:
        run: Runs a command.
        agent: How the agent is started.
        queue: The preemptible queue.
        name: Name of all placeholders, by which they are found again; PBS takes up to 15 characters.
        options: More options of qsub.
        log: Where placeholders write to.
        timeout_seconds: For each command.
    """

    run: RunCommand
    agent: AgentCommand
    queue: str
    name: str = "malletrain"
    options: tuple[str, ...] = ()
    log: str = "/dev/null"
    timeout_seconds: float = 30.0

    async def submit(self, node: str, seconds: float, facts: NodeFacts = NO_FACTS) -> str:
        """See `Batch`. Whoever has a host to himself still gets only the CPUs and GPUs that he asks for."""
        counts = {"ncpus": facts.cpus, "ngpus": facts.gpus}
        chunk = ":".join([f"1:vnode={node}", *(f"{name}={count}" for name, count in counts.items() if count)])
        answer = await self.run(
            [
                *("qsub", "-q", self.queue, "-N", self.name, "-r", "n", "-j", "oe", "-o", self.log),
                *("-l", f"select={chunk}", "-l", "place=exclhost", "-l", f"walltime={int(seconds)}"),
                *(*self.options, "--", *self.agent.on(node)),
            ],
            self.timeout_seconds,
        )
        identifier = answer.strip()
        if not _IDENTIFIER.match(identifier):
            raise SourceError(f"qsub: expected a job id, got {answer[:80]!r}")
        return identifier

    async def find(self) -> Found:
        """See `Batch`; `qstat -f` is asked only for what `qselect`, which is cheap, has found."""
        identifiers = (await self.run(["qselect", "-N", self.name], self.timeout_seconds)).split()
        if not identifiers:
            return {}
        return pbs_jobs(await self.run(["qstat", "-f", "-F", "json", *identifiers], self.timeout_seconds))

    async def cancel(self, identifiers: Sequence[str]) -> None:
        """See `Batch`; `-x` so that one that has ended meanwhile is no error."""
        await self.run(["qdel", "-x", *identifiers], self.timeout_seconds)


def pbs_jobs(text: str) -> Found:
    """From `qstat -f -F json` to placeholders; those that are over are left out.

    Raises:
        SourceError: it is not of that form.
    """
    try:
        jobs = json.loads(text)["Jobs"]
        found = {}
        for identifier, job in jobs.items():
            phase = _PHASES.get(job["job_state"])
            if phase is not None:
                found[identifier] = (_node(job), phase)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(f"qstat: expected jobs in JSON, got {text[:80]!r}") from error
    return found


def _node(job: dict[str, Any]) -> str:
    running = _VNODE.match(str(job.get("exec_vnode", "")))
    if running:
        return running.group(1)
    requested = _REQUESTED.search(str(job.get("Resource_List", {}).get("select", "")))
    return requested.group(1) if requested else ""
