"""Checks what submitted jobs are to wait for: the form of it, and the jobs that it names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from malletrain.job_manager.machine.jobs import NO_DEPENDENCIES, Dependencies, Job, JobSpec, job_number
from malletrain.model.job_state import JobState
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import resources_pb2

MAX_DEPENDENCIES = 64
"""How many dependencies a job may have."""
MAX_NAMES = 256
"""How many different jobs and arrays a submission may name as dependencies: each is looked up."""
_NAME = re.compile(r"[ja][0-9]{6,18}\Z")
_LISTS = ("after", "after_ok")


def check_form(at: str, spec: resources_pb2.JobSpec) -> Dependencies:
    """The dependencies of a job, as far as that can be said without the jobs that it names.

    Args:
        at: Path of the field, for errors.
        spec: What was submitted.

    Raises:
        InvalidInputError: they can't be used; the field is named like `specs[0].dependencies.after[1]`.
    """
    if not spec.HasField("dependencies"):
        return NO_DEPENDENCIES
    dependencies = Dependencies(tuple(spec.dependencies.after), tuple(spec.dependencies.after_ok))
    if dependencies and spec.HasField("fleet"):
        raise InvalidInputError(at, "none: members of a fleet wait for no other job", dependencies.names[0])
    if len(dependencies.names) > MAX_DEPENDENCIES:
        raise InvalidInputError(at, f"at most {MAX_DEPENDENCIES} jobs and arrays", len(dependencies.names))
    seen: set[str] = set()
    for field, name in _entries(at, dependencies):
        if not _NAME.match(name):
            raise InvalidInputError(field, "the identifier of a job (j000012) or of an array (a000012)", name)
        if name in seen:
            raise InvalidInputError(field, "each job and array once, in after or in after_ok", name)
        seen.add(name)
    return dependencies


def check_named(
    specs: Sequence[JobSpec],
    owner: str,
    job: Callable[[int], Job | None],
    jobs_from: Callable[[int], Sequence[Job]],
) -> frozenset[str]:
    """Look at the jobs that those of a submission are to wait for; returns those that have not ended, by identifier.

    Args:
        specs: What is submitted; its form has been checked.
        owner: Who submits it.
        job: A job by its number; None: there is none.
        jobs_from: Jobs from a number on, oldest first, as many as a submission may have.

    Raises:
        InvalidInputError: a job is not known, is another owner's, or has ended otherwise than the submission requires.
    """
    looked_at: dict[str, list[Job]] = {}
    checked: set[Dependencies] = set()
    for index, spec in enumerate(specs):
        if spec.dependencies in checked:
            continue
        checked.add(spec.dependencies)
        for field, name in _entries(f"specs[{index}].dependencies", spec.dependencies):
            if name not in looked_at:
                if len(looked_at) >= MAX_NAMES:
                    raise InvalidInputError(field, f"at most {MAX_NAMES} different ones in a submission", name)
                looked_at[name] = _jobs_named(name, job, jobs_from)
            _check_jobs(field, name, looked_at[name], owner, must_complete=name in spec.dependencies.after_ok)
    return frozenset(earlier.id for jobs in looked_at.values() for earlier in jobs if not earlier.state.final)


def _entries(at: str, dependencies: Dependencies) -> list[tuple[str, str]]:
    """The field of each identifier, and the identifier."""
    return [
        (f"{at}.{part}[{place}]", name) for part in _LISTS for place, name in enumerate(getattr(dependencies, part))
    ]


def _jobs_named(name: str, job: Callable[[int], Job | None], jobs_from: Callable[[int], Sequence[Job]]) -> list[Job]:
    number = job_number(name)
    if name.startswith("a"):
        return [member for member in jobs_from(number) if member.array_id == name]
    named = job(number)
    return [named] if named is not None and named.id == name else []


def _check_jobs(field: str, name: str, jobs: Sequence[Job], owner: str, *, must_complete: bool) -> None:
    if not jobs:
        raise InvalidInputError(field, "a job or an array that was submitted before and is still known", name)
    if jobs[0].owner != owner:
        raise InvalidInputError(field, f"a job of {owner}; {name} is {jobs[0].owner}'s", name)
    if not must_complete:
        return
    for job in jobs:
        if job.state.final and job.state is not JobState.COMPLETED:
            expected = f"jobs that are COMPLETED or have not ended; {job.id} is {job.state}"
            raise InvalidInputError(field, expected, name)
