"""Arrays: one job for each combination of parameters, all of one submission. Pure."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from malletrain.caller.job_request import JobRequest, job_spec
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import resources_pb2

MAX_JOBS = 1000
"""How many jobs one submission may have."""
_MAX_LIMIT = 1_000_000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_EXAMPLE = "'lr=0.1,0.01 depth=18,50 %2'"
_NUMBERS = re.compile(r"[0-9][0-9,:-]*\Z")
_RANGE = re.compile(r"[0-9]+(-|\.\.|:)[0-9]+(:[0-9]+)?\Z")
_WRITTEN_OUT = "ranges are written out, in a shell by $(seq -s, 0 9)"


@dataclass(frozen=True)
class ArrayRequest:
    """An array as its submitter asks for it.

    Attributes:
        parameters: Values of each parameter; there is a job for each combination of them.
        at_once: Most of its jobs that take part in plans at the same time; 0: as many as there are places.
    """

    parameters: Mapping[str, Sequence[str]]
    at_once: int = 0

    def combinations(self) -> Iterator[dict[str, str]]:
        """A value of each parameter for each job; the last parameter changes first."""
        for values in itertools.product(*self.parameters.values()):
            yield dict(zip(self.parameters, values, strict=True))


def parse_array(text: str) -> ArrayRequest:
    """`lr=0.1,0.01 depth=18,50 %2`: parameters with their values, and how many jobs at once.

    Raises:
        InvalidInputError: it is something else, or makes more than 1000 jobs.
    """
    *words, last = text.split() or [""]
    words, at_once = ([*words, last], 0) if "%" not in last else _with_limit(words, last)
    parameters: dict[str, Sequence[str]] = {}
    for word in words:
        name, has_values, values = word.partition("=")
        if not has_values or name in parameters:
            hint = "" if has_values else _hint(word, parameters)
            raise InvalidInputError("--array", f"each parameter once, with values, such as {_EXAMPLE}{hint}", word)
        parameters[name] = values.split(",")
    return checked_array(ArrayRequest(parameters, at_once))


def _hint(word: str, before: Mapping[str, Sequence[str]]) -> str:
    """What is meant, probably, by a word without a name."""
    if (before and not all(list(before.values())[-1])) or word.startswith(","):
        return ", without spaces beside commas"
    if _NUMBERS.match(word):
        return f". Numbers need a name, too, 'i=0,1,2 %2' with {{i}} in the command; {_WRITTEN_OUT}"
    return ""


def range_note(array: ArrayRequest) -> str:
    """What to say of a parameter whose only value looks like a range; empty: there is none."""
    for name, values in array.parameters.items():
        if len(values) == 1 and _RANGE.match(values[0]):
            return f"{name} has the one value {values[0]!r}: {_WRITTEN_OUT}"
    return ""


def checked_array(array: ArrayRequest) -> ArrayRequest:
    """An array that can be submitted.

    Raises:
        InvalidInputError: it can't be.
    """
    if not array.parameters:
        raise InvalidInputError("--array", f"parameters with values, such as {_EXAMPLE}")
    for name, values in array.parameters.items():
        if not _NAME.match(name):
            raise InvalidInputError("--array", "names of 1 to 64 letters, digits, _ and -", name)
        if not all(values) or len(set(values)) < len(values):
            raise InvalidInputError("--array", f"values of {name}, each once", ",".join(values))
    jobs = math.prod(map(len, array.parameters.values()))
    if jobs > MAX_JOBS:
        raise InvalidInputError("--array", f"at most {MAX_JOBS} combinations", jobs)
    if not 0 <= array.at_once <= _MAX_LIMIT:
        raise InvalidInputError("--array", f"%N with N from 1 to {_MAX_LIMIT}", array.at_once)
    return array


def array_specs(request: JobRequest, array: ArrayRequest) -> list[resources_pb2.JobSpec]:
    """A specification for each job. In command and variables, `{lr}` stands for the value of the parameter `lr`.

    Raises:
        InvalidInputError: a parameter stands nowhere, or another value is not as expected.
    """
    check_used("--array", request, array.parameters)
    specs: list[resources_pb2.JobSpec] = []
    for parameters in array.combinations():
        own = _with_parameters(request, parameters)
        if specs and not _chooses_script(request.command):
            spec = resources_pb2.JobSpec()
            spec.CopyFrom(specs[0])
            spec.command[:] = own.command
            spec.environment.update(own.env)
            spec.array_parameters.update(parameters)
        else:
            spec = job_spec(own)
            spec.array.max_admitted = array.at_once
            spec.array.SetInParent()
            spec.array_parameters.update(parameters)
        specs.append(spec)
    return specs


def check_used(field: str, request: JobRequest, names: Iterable[str]) -> None:
    """Check that each parameter stands somewhere in command or variables.

    Raises:
        InvalidInputError: one does not; it is said of this field.
    """
    used = " ".join((*request.command, *request.env.values()))
    for name in names:
        if f"{{{name}}}" not in used:
            raise InvalidInputError(field, f"{{{name}}} in the command or in a variable, for the value of {name}")


def filled_spec(request: JobRequest, parameters: Mapping[str, str]) -> resources_pb2.JobSpec:
    """The specification of one job. In command and variables, `{lr}` stands for the value of the parameter `lr`.

    Raises:
        InvalidInputError: a value is not as expected.
    """
    return job_spec(_with_parameters(request, parameters))


def _chooses_script(command: Iterable[str]) -> bool:
    """Whether a parameter may choose what is run: then each job's script is looked at for itself."""
    words = list(command)
    script = next((place for place, word in enumerate(words) if place and not word.startswith("-")), 0)
    return any("{" in word for word in words[: script + 1])


def _with_parameters(request: JobRequest, parameters: Mapping[str, str]) -> JobRequest:
    """The request with the values of parameters in its command and variables."""
    return replace(
        request,
        command=[_fill(word, parameters) for word in request.command],
        env={name: _fill(value, parameters) for name, value in request.env.items()},
    )


def _fill(text: str, parameters: Mapping[str, str]) -> str:
    """A text with the values of parameters; other braces stay, as in JSON."""
    return re.sub(r"\{([A-Za-z0-9_-]{1,64})\}", lambda match: parameters.get(match[1], match[0]), text)


def _with_limit(words: list[str], last: str) -> tuple[list[str], int]:
    """The words without the `%N` at the end of the last one, and N."""
    word, _, number = last.rpartition("%")
    if not (number.isascii() and number.isdecimal() and 0 < len(number) < 8) or not int(number):
        raise InvalidInputError("--array", f"%N with N from 1 to {_MAX_LIMIT}, at the end", last)
    return ([*words, word] if word else words), int(number)
