"""Jobs that belong together: arrays, fleets, searches, and jobs of one name. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from malletrain.observer.facts import JobFact

_NUMBERED = re.compile(r"(.*\S)-[0-9]{1,9}", re.DOTALL)


def belongs(job: JobFact, group: str) -> bool:
    """Whether a job is a member of an array or fleet, has this name, or is a trial of the search of this name."""
    if group in (job.array, job.fleet, job.name):
        return bool(group)
    found = _NUMBERED.fullmatch(job.name)
    return found is not None and found[1] == group


def groups_of(jobs: Iterable[JobFact]) -> list[tuple[str, str, int]]:
    """The groups of several jobs, those with the newest jobs first.

    Returns:
        Of each what it is called, the name of its jobs or search, and how many jobs it has.
    """
    counted: Counter[tuple[str, str]] = Counter()
    newest: dict[tuple[str, str], str] = {}
    for job in jobs:
        found = _NUMBERED.fullmatch(job.name)
        name = found[1] if found is not None else job.name
        key = (job.array or job.fleet or name, name)
        counted[key] += 1
        newest[key] = max(newest.get(key, ""), _padded(job.id))
    several = [key for key, count in counted.items() if count > 1 and key[0]]
    return [(*key, counted[key]) for key in sorted(several, key=lambda key: newest[key], reverse=True)]


def _padded(job_id: str) -> str:
    return job_id.removeprefix("j").zfill(20)
