"""What the shell completes: jobs and nodes, as the services know them.

Only names that a shell takes as they are, and of jobs only the caller's own: a completed word is run with its line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress

from malletrain.cli.jobs.jobs import all_jobs, own_name
from malletrain.cli.shared.output import state_name
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs, connect
from malletrain.runtime.errors import MalleTrainError
from malletrain.v1 import scavenger_pb2

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
    found: dict[str, str] = {}
    with suppress(MalleTrainError), connect() as stubs:  # a shell has no place for what went wrong
        for word, note in words(stubs):
            if word.startswith(incomplete) and _PLAIN.match(word) and len(found) < _MAX_WORDS:
                found.setdefault(word, note)
    return list(found.items())
