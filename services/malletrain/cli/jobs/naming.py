"""Which job, array or fleet is meant: by its identifier, or by its name; and what the shell completes.

Only names that a shell takes as they are, and of jobs only the caller's own: a completed word is run with its line.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Annotated

import typer

from malletrain.caller.dependencies import meant_by_name
from malletrain.caller.other_names import identifier_like
from malletrain.cli.jobs.jobs import all_jobs, own_name
from malletrain.cli.shared.output import ago, state_name
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs, connect
from malletrain.runtime.errors import InvalidInputError, MalleTrainError, NotFoundError, quote
from malletrain.runtime.messages import FINAL_JOB_STATES
from malletrain.v1 import allocator_pb2, fleet_pb2, job_manager_pb2, resources_pb2, scavenger_pb2

Completion = tuple[str, str]
"""A word, and what a shell shows beside it."""
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_MAX_WORDS = 200


def complete_job(incomplete: str) -> list[Completion]:
    """The caller's jobs, newest first: their identifiers, and their names."""

    def words(stubs: ServiceStubs) -> Iterator[Completion]:
        jobs = list(all_jobs(stubs, owner=own_name(stubs)))[::-1]
        yield from ((job.id, state_name(job.state)) for job in jobs)
        yield from ((job.spec.name, job.id) for job in jobs)

    return _complete(incomplete, words)


def complete_node(incomplete: str) -> list[Completion]:
    """Idle nodes, and drained ones."""

    def words(stubs: ServiceStubs) -> Iterator[Completion]:
        for node in stubs.scavenger.ListNodes(scavenger_pb2.ListNodesRequest(), timeout=DEADLINE_SECONDS).nodes:
            yield node.name, "idle"
        status = stubs.scavenger.GetStatus(scavenger_pb2.GetStatusRequest(), timeout=DEADLINE_SECONDS)
        for drained in status.drained:
            yield drained.name, "drained"

    return _complete(incomplete, words)


def _complete(incomplete: str, words: Callable[[ServiceStubs], Iterator[Completion]]) -> list[Completion]:
    notes: dict[str, str] = {}
    with suppress(MalleTrainError), connect() as stubs:  # a shell has no place for what went wrong
        for word, note in words(stubs):
            if word.startswith(incomplete) and _PLAIN.match(word) and len(notes) < _MAX_WORDS:
                notes.setdefault(word, note)
    return list(notes.items())


_FLEET = re.compile(r"f\d{6,}")
_ARRAY = re.compile(r"a\d{6,}")


def is_fleet(name: str) -> bool:
    """Whether a name is the identifier of a fleet."""
    return bool(_FLEET.fullmatch(name))


def is_group(name: str) -> bool:
    """Whether a name is the identifier of an array or a fleet."""
    return is_fleet(name) or bool(_ARRAY.fullmatch(name))


def members_of(stubs: ServiceStubs, fleet_id: str) -> list[resources_pb2.Job]:
    """The jobs of a fleet or an array, in the order of their submission.

    Raises:
        NotFoundError: there is none of this identifier.
    """
    members = [job for job in all_jobs(stubs) if fleet_id in (job.fleet_id, job.array_id)]
    if not members:
        raise NotFoundError(f"{'fleet' if is_fleet(fleet_id) else 'array'} {quote(fleet_id)} is not known")
    return members


def decision_in_words(decision: allocator_pb2.FleetDecision) -> str:
    """How a plan divides the GPUs of a fleet, and why."""
    planner = fleet_pb2.FleetPlanner.Name(decision.planner).removeprefix("FLEET_PLANNER_").lower()
    training = sum(bool(entry.nodes) for entry in decision.members)
    used = sum(len(entry.nodes) for entry in decision.members)
    return (
        f"{training} members on {used} of {decision.gpus} GPUs by {planner}: expected {decision.rate:,.1f} samples/s "
        f"together, the slowest {decision.pace:,.1f}\nbecause {decision.reason}"
    )


_IDENTIFIER = re.compile(r"j\d{6,}")
_MAX_LISTED = 10
_MAX_LIKE = 1000
"""Jobs whose names are compared with one that no job has."""

JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="The job: its identifier, e.g. j000001, or its name.", autocompletion=complete_job
    ),
]
JobsArgument = Annotated[
    list[str],
    typer.Argument(metavar="ID...", help="Jobs (also by their names), arrays or fleets.", autocompletion=complete_job),
]


def job_of(stubs: ServiceStubs, text: str, now: float) -> str:
    """The identifier of the job that a user means: by its identifier, or by its name the newest that has it.

    Anybody may give any name to jobs. So those of the caller come first, and jobs of others only where the caller has
    none of this name. Where several have it, standard error says which was taken.

    Raises:
        NotFoundError: no job has this name.
    """
    if _IDENTIFIER.fullmatch(text):
        return text
    *others, newest = _jobs_of_name(stubs, text)
    if others:
        typer.echo(f"note: {quote(text)} is the newest of {len(others) + 1} jobs of this name: {newest.id}", err=True)
        for line in _in_words(others, now):
            typer.echo(line, err=True)
    return newest.id


def unfinished_jobs_of(stubs: ServiceStubs, texts: Iterable[str], now: float) -> list[str]:
    """The jobs that are meant by identifiers or names of jobs, and by identifiers of arrays and fleets.

    Args:
        stubs: The services.
        texts: What the user has written.
        now: Seconds since the epoch.

    Raises:
        NotFoundError: there is none of an identifier.
        InvalidInputError: a name does not say which job is meant.
    """
    meant: list[str] = []
    for text in texts:
        if is_group(text):
            meant += [job.id for job in members_of(stubs, text) if job.state not in FINAL_JOB_STATES]
        else:
            meant.append(unfinished_job_of(stubs, text, now))
    return meant


def unfinished_job_of(stubs: ServiceStubs, text: str, now: float) -> str:
    """The job of a name that is to be ended: no other of this name may be unfinished.

    Raises:
        InvalidInputError: several have not ended.
        NotFoundError: no job has this name.
    """
    if _IDENTIFIER.fullmatch(text):
        return text
    jobs = _jobs_of_name(stubs, text)
    unfinished = [job for job in jobs if job.state not in FINAL_JOB_STATES]
    if len(unfinished) > 1:
        listed = "; ".join(line.strip() for line in _in_words(unfinished, now))
        raise InvalidInputError("ID", f"an identifier, since {len(unfinished)} jobs have this name ({listed})", text)
    return (unfinished or jobs)[-1].id


def dependency_of(stubs: ServiceStubs, part: str, text: str, now: float) -> str:
    """The identifier of what a job is to wait for: of a name, the newest job that has it, or its array.

    Args:
        stubs: The services.
        part: `after` or `after_ok`, for the error.
        text: The name.
        now: Seconds since the epoch.

    Raises:
        InvalidInputError: no job has this name.
    """
    try:
        jobs = _jobs_of_name(stubs, text)
    except NotFoundError:
        expected = "identifiers of jobs or arrays, or names of jobs"
        raise InvalidInputError(f"--{part.replace('_', '-')}", expected, text) from None
    meant, others = meant_by_name(jobs)
    if others:
        typer.echo(f"note: {quote(text)} is taken for {meant}, the newest; older jobs of this name:", err=True)
        for line in _in_words(others, now):
            typer.echo(line, err=True)
    return meant


def jobs_meant(stubs: ServiceStubs, texts: Sequence[str]) -> list[resources_pb2.Job] | None:
    """The jobs that are to be compared: each by its identifier or name, or all of an array, a fleet or a search.

    Jobs of a search are known by their names, `NAME-1` and so on, where no job has the name itself. A name of jobs of
    an array is the name of the array.

    Returns:
        The jobs, each once, in the order in which they were named; None: one job was named, and no group of jobs.

    Raises:
        NotFoundError: there are none of this identifier or name.
    """
    by_id: dict[str, resources_pb2.Job] = {}
    alone = len(texts) == 1
    for text in texts:
        if is_group(text):
            jobs = members_of(stubs, text)
        elif _IDENTIFIER.fullmatch(text):
            if alone:
                return None
            request = job_manager_pb2.GetJobRequest(job_id=text)
            jobs = [stubs.job_manager.GetJob(request, timeout=DEADLINE_SECONDS).job]
        else:
            jobs = _named_or_trials(stubs, text)
            if jobs[-1].array_id:
                jobs = _array_meant(jobs, text)
            elif not _is_trial_of(text, jobs[0]):
                if alone:
                    return None
                jobs = jobs[-1:]
        by_id |= {job.id: job for job in jobs}
    return list(by_id.values())


def _array_meant(jobs: Sequence[resources_pb2.Job], name: str) -> list[resources_pb2.Job]:
    """The newest array of these jobs. Standard error says so where there are others of its name."""
    meant, others = meant_by_name(jobs)
    if others:
        typer.echo(f"note: {quote(name)} is taken for {meant}, the newest of this name", err=True)
    return [job for job in jobs if job.array_id == meant]


def _named_or_trials(stubs: ServiceStubs, text: str) -> list[resources_pb2.Job]:
    """The jobs of a name, oldest first; where there are none, those of a search, in the order of its trials.

    They are the caller's, or else those of others. Never empty.
    """
    try:
        return _jobs_of_name(stubs, text)
    except NotFoundError:
        trials = [job for job in all_jobs(stubs) if _is_trial_of(text, job)]
        if not trials:
            raise
        own = own_name(stubs)
        meant = [job for job in trials if job.owner == own] or trials
        return sorted(meant, key=lambda job: int(job.spec.name.rpartition("-")[2]))


def _is_trial_of(study: str, job: resources_pb2.Job) -> bool:
    return re.fullmatch(re.escape(study) + r"-\d{1,9}", job.spec.name) is not None


def own_job_of(stubs: ServiceStubs, text: str) -> str | None:
    """The identifier of the caller's newest job of a name; None: the caller has none."""
    own = own_name(stubs)
    job_ids = [job.id for job in all_jobs(stubs, owner=own, name=text) if job.spec.name == text]
    return job_ids[-1] if job_ids else None


def _jobs_of_name(stubs: ServiceStubs, name: str) -> list[resources_pb2.Job]:
    """The jobs of a name, oldest first: the caller's, or else those of others. Never empty."""
    if not name.strip():
        raise InvalidInputError("ID", "a job's identifier or its name", name)
    jobs = [job for job in all_jobs(stubs, name=name) if job.spec.name == name]  # an earlier JobManager lists all
    if not jobs:
        raise NotFoundError(f"no job has the identifier or the name {quote(name)}{_suggest_names(stubs, name)}")
    own = own_name(stubs)
    return [job for job in jobs if job.owner == own] or jobs


def _suggest_names(stubs: ServiceStubs, name: str) -> str:
    """What a name that no job has is probably meant for, as the end of the error."""
    like = identifier_like(name)
    newest = deque(all_jobs(stubs, owner=own_name(stubs)), _MAX_LIKE)
    if like:
        return f"; do you mean {like}?" if any(job.id == like for job in newest) else "; identifiers are as j000001"
    near = get_close_matches(name, sorted({job.spec.name for job in newest}), 3)
    return f"; do you mean {' or '.join(map(quote, near))}?" if near else "; `malletrain jobs` lists them"


def _in_words(jobs: Sequence[resources_pb2.Job], now: float) -> list[str]:
    """A line for each job, newest first."""
    newest = jobs[::-1][:_MAX_LISTED]
    lines = [f"  {job.id} {state_name(job.state)}, of {job.owner}, {ago(job.create_time, now)} ago" for job in newest]
    return lines + ([f"  and {len(jobs) - len(newest)} more"] if len(jobs) > len(newest) else [])
