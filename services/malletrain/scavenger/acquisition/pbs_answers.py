"""What qsub and qstat say of placeholders. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from malletrain.scavenger.machine.gpu_units import node_of_unit
from malletrain.scavenger.machine.placeholders import EndedPlaceholder, ListedPlaceholder, PlaceholderPhase
from malletrain.scavenger.sources.base import SourceError
from malletrain.scavenger.sources.schedulers.availability import UnreadableError
from malletrain.scavenger.sources.schedulers.pbs_json import read_jobs

_IDENTIFIER = re.compile(r"\d+\.\S+\Z")
_REQUESTED = re.compile(r"(?:host|vnode)=([^:+]+)")
_HOST = re.compile(r"\(?([^/+()]+)")
_TAG = re.compile(r"<[^<>]*>")
_ARGUMENT = "jsdl-hpcpa:Argument"
_SEPARATORS = frozenset("<>&,\"'\\")
_PHASES = {
    "Q": PlaceholderPhase.PENDING,
    "H": PlaceholderPhase.PENDING,
    "W": PlaceholderPhase.PENDING,
    "R": PlaceholderPhase.RUNNING,
    "E": PlaceholderPhase.ENDING,
}
_ATTRIBUTES = (
    *("Exit_status", "Job_Name", "Job_Owner", "Resource_List", "argument_list", "comment", "exec_host", "job_state"),
    "queue",
)
_BLOCKED = re.compile(r"queue not (started|enabled)|has reached|limit|not allowed|hold", re.IGNORECASE)
"""What PBS says in the comment of a job that does not only wait for its node."""
_KILLED = (256 + 15, 256 + 9)
"""Exit status of a job that PBS has ended, by SIGTERM or SIGKILL."""


@dataclass(frozen=True)
class PbsMark:
    """What a placeholder of this installation is recognised by.

    Attributes:
        user: Its owner.
        name: Its job name.
        installation: What its agent was given as `--installation`.
    """

    user: str
    queue: str
    name: str
    installation: str

    def is_on(self, job: Mapping[str, Any]) -> bool:
        """Whether a job of `qstat -f` is ours. Every part must be right: others may use the same queue or name."""
        return (
            str(job.get("Job_Owner", "")).partition("@")[0] == self.user
            and job.get("queue") == self.queue
            and job.get("Job_Name") == self.name
            and ("--installation", self.installation) in itertools.pairwise(_arguments(job))
        )


def argument_element(word: str) -> str:
    """An argument of a job's program, as the attribute `argument_list` has it.

    Raises:
        SourceError: `qsub -W` could not tell where it ends.
    """
    if set(word) & _SEPARATORS or not word.isprintable():
        raise SourceError(f"qsub: expected an argument without {' '.join(sorted(_SEPARATORS))}, got {word!r}")
    return f"<{_ARGUMENT}>{word}</{_ARGUMENT}>"


def parse_job_id(text: str) -> str:
    """The answer to `qsub`.

    Raises:
        SourceError: it is no job id.
    """
    identifier = text.strip()
    if not _IDENTIFIER.match(identifier):
        raise SourceError(f"qsub: expected a job id, got {text[:80]!r}")
    return identifier


def parse_pbs_jobs(text: str, mark: PbsMark) -> dict[str, ListedPlaceholder]:
    """The answer to `qstat -f -w`, without jobs that have ended and jobs of others.

    Raises:
        SourceError: the text has another form.
    """
    placeholders = {}
    for identifier, job in _jobs(text).items():
        phase = _PHASES.get(str(job.get("job_state")))
        if phase is not None and mark.is_on(job):
            comment = str(job.get("comment", ""))
            blocked = phase is PlaceholderPhase.PENDING and (job["job_state"] == "H" or _BLOCKED.search(comment))
            placeholders[identifier] = ListedPlaceholder(_node(job), phase, f"PBS says {comment!r}" if blocked else "")
    return placeholders


def parse_pbs_ends(text: str) -> dict[str, EndedPlaceholder | None]:
    """The answer to `qstat -x -f -w`: how jobs have ended; None for those that have not.

    Raises:
        SourceError: the text has another form.
    """
    ends: dict[str, EndedPlaceholder | None] = {}
    for identifier, job in _jobs(text).items():
        if job.get("job_state") in _PHASES:
            ends[identifier] = None
            continue
        status = _number(job.get("Exit_status"))
        reason = f"exit status {status} ({job.get('comment', 'no comment')})"
        ends[identifier] = EndedPlaceholder(reason, failed=status not in _KILLED)
    return ends


def _jobs(text: str) -> dict[str, dict[str, Any]]:
    try:
        return read_jobs(text, _ATTRIBUTES)
    except UnreadableError as error:
        raise SourceError(f"qstat: {error}") from error


def _number(value: object) -> int | None:
    return int(str(value)) if re.fullmatch(r"-?\d{1,9}", str(value)) else None


def _arguments(job: Mapping[str, Any]) -> list[str]:
    """The arguments of the job's program."""
    return _TAG.sub(" ", str(job.get("argument_list", ""))).split()


def _node(job: Mapping[str, Any]) -> str:
    """The host that a placeholder asks for, or the GPU of it that its agent is told.

    One of an earlier version may only say where it runs.
    """
    resources = job.get("Resource_List")
    requested = _REQUESTED.search(str(resources.get("select", ""))) if isinstance(resources, dict) else None
    if requested:
        pairs = itertools.pairwise(_arguments(job))
        node_option = next((name for option, name in pairs if option == "--node"), "")
        return node_option if node_of_unit(node_option) == requested[1] else requested[1]
    running = _HOST.match(str(job.get("exec_host", "")))
    return running[1] if running else ""
