"""The client for PBS."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from malletrain.scavenger.acquisition.batch_client import UNKNOWN_END, AgentCommand
from malletrain.scavenger.acquisition.placeholders import EndedPlaceholder, ListedPlaceholder, PlaceholderPhase
from malletrain.scavenger.sources.base import NO_FACTS, NodeFacts, SourceError
from malletrain.scavenger.sources.schedulers.commands import RunCommand

_IDENTIFIER = re.compile(r"\d+\.\S+\Z")
_VNODE = re.compile(r"\(?([^:+()]+)")
_REQUESTED = re.compile(r"vnode=([^:+]+)")
_PHASES = {
    "Q": PlaceholderPhase.PENDING,
    "H": PlaceholderPhase.PENDING,
    "W": PlaceholderPhase.PENDING,
    "R": PlaceholderPhase.RUNNING,
    "E": PlaceholderPhase.ENDING,
}
_BLOCKED = re.compile(r"queue not (started|enabled)|has reached|limit|not allowed|hold", re.IGNORECASE)
"""What PBS says in the comment of a job that does not only wait for its node."""
_KILLED = (256 + 15, 256 + 9)
"""Exit status of a job that PBS has ended, by SIGTERM or SIGKILL."""


@dataclass(frozen=True)
class PbsBatchClient:
    """Placeholders as PBS jobs. The agent is the job's own program, which gets SIGTERM when the job is preempted.

    Attributes:
        run: Runs a command.
        agent: How the agent is started.
        queue: The preemptible queue.
        name: Job name of all placeholders, by which they are found; at most 15 characters.
        options: More options of qsub.
        log: File to which placeholders write.
        timeout_seconds: Time limit of each command.
    """

    run: RunCommand
    agent: AgentCommand
    queue: str
    name: str = "malletrain"
    options: tuple[str, ...] = ()
    log: str = "/dev/null"
    timeout_seconds: float = 30.0

    async def submit(self, node: str, seconds: float, facts: NodeFacts = NO_FACTS) -> str:
        """See `BatchClient`. Even on an exclusive host, a job gets only the CPUs and GPUs that it asks for."""
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

    async def find(self) -> Mapping[str, ListedPlaceholder]:
        """See `BatchClient`. `qstat -f`, which is expensive, is asked only about jobs that `qselect` has found."""
        identifiers = (await self.run(["qselect", "-N", self.name], self.timeout_seconds)).split()
        if not identifiers:
            return {}
        return parse_pbs_jobs(await self.run(["qstat", "-f", "-F", "json", *identifiers], self.timeout_seconds))

    async def explain(self, identifiers: Sequence[str]) -> Mapping[str, EndedPlaceholder]:
        """See `BatchClient`. PBS remembers ended jobs where `job_history_enable` is set."""
        try:
            answer = await self.run(["qstat", "-x", "-f", "-F", "json", *identifiers], self.timeout_seconds)
        except SourceError as error:
            if "Unknown Job Id" not in str(error):
                raise
            return dict.fromkeys(identifiers, UNKNOWN_END)
        ends = parse_pbs_ends(answer)
        found = {identifier: ends.get(identifier, UNKNOWN_END) for identifier in identifiers}
        return {identifier: end for identifier, end in found.items() if end is not None}

    async def cancel(self, identifiers: Sequence[str]) -> None:
        """See `BatchClient`. With `-x`, a job that has ended meanwhile is no error."""
        await self.run(["qdel", "-x", *identifiers], self.timeout_seconds)


def parse_pbs_jobs(text: str) -> dict[str, ListedPlaceholder]:
    """The answer to `qstat -f -F json`, without jobs that have ended.

    Raises:
        SourceError: the text has another form.
    """
    found = {}
    for identifier, job in _jobs(text).items():
        phase = _PHASES.get(str(job.get("job_state")))
        if phase is not None:
            comment = str(job.get("comment", ""))
            blocked = phase is PlaceholderPhase.PENDING and (job["job_state"] == "H" or _BLOCKED.search(comment))
            found[identifier] = ListedPlaceholder(_node(job), phase, f"PBS says {comment!r}" if blocked else "")
    return found


def parse_pbs_ends(text: str) -> dict[str, EndedPlaceholder | None]:
    """The answer to `qstat -x -f -F json`: how jobs have ended; None for those that have not.

    Raises:
        SourceError: the text has another form.
    """
    found: dict[str, EndedPlaceholder | None] = {}
    for identifier, job in _jobs(text).items():
        if job.get("job_state") in _PHASES:
            found[identifier] = None
            continue
        status = job.get("Exit_status")
        reason = f"exit status {status} ({job.get('comment', 'no comment')})"
        found[identifier] = EndedPlaceholder(reason, failed=status not in _KILLED)
    return found


def _jobs(text: str) -> dict[str, dict[str, Any]]:
    try:
        jobs = json.loads(text)["Jobs"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SourceError(f"qstat: expected jobs in JSON, got {text[:80]!r}") from error
    if not isinstance(jobs, dict) or not all(isinstance(job, dict) for job in jobs.values()):
        raise SourceError(f"qstat: expected jobs in JSON, got {text[:80]!r}")
    return jobs


def _node(job: dict[str, Any]) -> str:
    running = _VNODE.match(str(job.get("exec_vnode", "")))
    if running:
        return running.group(1)
    resources = job.get("Resource_List")
    requested = _REQUESTED.search(str(resources.get("select", ""))) if isinstance(resources, dict) else None
    return requested.group(1) if requested else ""
