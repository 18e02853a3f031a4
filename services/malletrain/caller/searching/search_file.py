"""Searches in TOML: a job file with a table `search`. Errors name the line."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any

from malletrain.caller.job_file import JOB_KEYS, line_of, read_job_file
from malletrain.caller.option_values import nearest
from malletrain.caller.searching.start import SearchRequest
from malletrain.runtime.errors import InvalidInputError

SEARCH_KEYS = (
    "space",
    "metric",
    "direction",
    "trials",
    "at-once",
    "sampler",
    "pruner",
    "storage",
    "seed",
    "failures",
    "favour",
)
_TABLE = "search"
_REQUIRED = ("space", "metric")


def read_search_file(text: str, name: str, expand_nodes: Callable[[str], tuple[str, ...]]) -> SearchRequest:
    """The search that a file describes. What its values have to be is checked when it starts.

    Args:
        text: Its content.
        name: Its name, for errors.
        expand_nodes: Names in a list of nodes such as `n07,n[11-13]`.

    Raises:
        InvalidInputError: it is no job file with such a table. The error names the line.
    """
    job = read_job_file(text, name, expand_nodes, others=(_TABLE,))
    if job.array:
        raise InvalidInputError(f"{name}:{line_of(text, 'array')}", "no array beside a search")
    table = tomllib.loads(text).get(_TABLE)
    if not isinstance(table, dict):
        raise InvalidInputError(name, "a table [search] with space and metric")
    for key in table:
        if key not in SEARCH_KEYS:
            near = nearest(key.replace("_", "-"), SEARCH_KEYS)
            expected = f"a known key, such as {near}" if near else f"one of {', '.join(SEARCH_KEYS)}"
            raise InvalidInputError(f"{name}:{_line(text, key)}", expected, key)
    for key in _REQUIRED:
        if key not in table:
            raise InvalidInputError(f"{name}:{line_of(text, _TABLE)}", f"a key {key} in [search]")
    values: dict[str, Any] = {key.replace("-", "_"): value for key, value in table.items()}
    return SearchRequest(job=job, **values)


def in_file(error: InvalidInputError, text: str, name: str) -> InvalidInputError:
    """An error of a search with the line of the file that it is about; unchanged where that is not known.

    Args:
        error: The error, of a field such as `space.lr` or of an option such as `--backend`.
        text: Content of the file.
        name: Its name.
    """
    first, _, rest = error.field.removeprefix("--").partition(".")
    key = first.replace("_", "-")
    if key in SEARCH_KEYS:
        inner = rest.partition(".")[0]
        line = _line(text, inner) if inner else _line(text, key)
    elif key in JOB_KEYS:
        line = line_of(text, key)
    else:
        return error
    return InvalidInputError(f"{name}:{line}", f"{error.field} to be {error.expected}")


def _line(text: str, key: str) -> int:
    """The line of a key of the table, or of a table in it."""
    found = line_of(text, _TABLE, key)
    nested = line_of(text, f"{_TABLE}.{key}")
    return nested if nested > 1 else found
