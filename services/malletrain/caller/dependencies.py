"""Jobs that others wait for, as their submitters name them: by identifier, or by a name of their own jobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import resources_pb2

_IDENTIFIER = re.compile(r"[ja]\d{6,18}")


def parse_names(option: str, text: str) -> list[str]:
    """`j000012,prepare` as identifiers and names.

    Raises:
        InvalidInputError: one is empty.
    """
    names = [name.strip() for name in text.split(",")] if text else []
    if not all(names):
        raise InvalidInputError(option, "jobs separated by commas, by their identifiers or names", text)
    return names


def name_identifiers(specs: Iterable[resources_pb2.JobSpec], identifier: Callable[[str, str], str]) -> None:
    """Put identifiers in place of names in what jobs are to wait for.

    Args:
        specs: Specifications of one submission; changed.
        identifier: Makes an identifier of `after` or `after_ok` and a name; asked for each name once.
    """
    known: dict[tuple[str, str], str] = {}
    for spec in specs:
        if not spec.HasField("dependencies"):
            continue
        for part in ("after", "after_ok"):
            names = getattr(spec.dependencies, part)
            for name in names:
                if (part, name) not in known:
                    known[part, name] = name if _IDENTIFIER.fullmatch(name) else identifier(part, name)
            # Two names may be those of one array.
            names[:] = dict.fromkeys(known[part, name] for name in names)


def meant_by_name(jobs: Sequence[resources_pb2.Job]) -> tuple[str, list[resources_pb2.Job]]:
    """What is meant by a name: the newest job of this name, or its array, of which all jobs have the name.

    Args:
        jobs: The jobs of the name, oldest first; at least one.

    Returns:
        The identifier of the job or the array, and the older jobs, which are not meant.
    """
    newest = jobs[-1]
    if not newest.array_id:
        return newest.id, list(jobs[:-1])
    return newest.array_id, [job for job in jobs if job.array_id != newest.array_id]


def dependencies_in_words(spec: resources_pb2.JobSpec) -> str:
    """What a job was to wait for, e.g. `the end of j000012; the completion of a000013`; empty: nothing."""
    parts = (("the end of", spec.dependencies.after), ("the completion of", spec.dependencies.after_ok))
    return "; ".join(f"{what} {', '.join(names)}" for what, names in parts if names)
