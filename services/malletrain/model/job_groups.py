"""Which jobs belong together: those of an array, a fleet, a name or a search. Pure."""

from __future__ import annotations

import re

_NUMBERED = re.compile(r"(.*\S)-[0-9]{1,9}", re.DOTALL)


def search_of(name: str) -> str:
    """The name of the search whose trial has this name, as `study` of `study-12`; empty where it is none of a trial."""
    match = _NUMBERED.fullmatch(name)
    return match[1] if match is not None else ""


def in_group(group: str, name: str, array: str, fleet: str) -> bool:
    """Whether a job belongs to a group.

    Args:
        group: An array, a fleet, the name of jobs, or of a search; empty: no job belongs to it.
        name: Name of the job.
        array: The array that it is a member of; empty: none.
        fleet: The fleet that it is a member of; empty: none.
    """
    return bool(group) and group in (array, fleet, name, search_of(name))
