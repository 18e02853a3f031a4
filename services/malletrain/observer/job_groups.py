"""Jobs that belong together: arrays, fleets, searches, and jobs of one name. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from malletrain.model.job_groups import in_group, search_of
from malletrain.observer.job_facts import JobFact


def belongs(job: JobFact, group: str) -> bool:
    """Whether a job is a member of an array or fleet, has this name, or is a trial of the search of this name."""
    return in_group(group, job.name, job.array, job.fleet)


@dataclass(frozen=True, slots=True)
class JobGroup:
    """Several jobs of one owner that belong together."""

    called: str
    name: str
    owner: str
    count: int


def groups_of(jobs: Iterable[JobFact], user: str) -> list[JobGroup]:
    """The groups of several jobs: those of a user first, of these and of the others those with the newest jobs.

    Jobs of different owners are never in one group: names are chosen freely.
    """
    counted: Counter[tuple[str, str, str]] = Counter()
    newest: dict[tuple[str, str, str], str] = {}
    for job in jobs:
        name = search_of(job.name) or job.name
        key = (job.array or job.fleet or name, name, job.owner)
        counted[key] += 1
        newest[key] = max(newest.get(key, ""), job.id.removeprefix("j").zfill(20))
    several = [key for key, count in counted.items() if count > 1 and key[0]]
    several.sort(key=lambda key: (key[2] == user, newest[key]), reverse=True)
    return [JobGroup(*key, counted[key]) for key in several]
