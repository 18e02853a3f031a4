"""What each query of a source says, in `malletrain doctor --source`: the very queries by which nodes are found."""

from __future__ import annotations

import asyncio
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from malletrain.cli.operate.doctor_checks import Finding, judge
from malletrain.cli.shared.output import one_line
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.machine.observations import NodeFacts
from malletrain.scavenger.sources.base import SourceError
from malletrain.scavenger.sources.schedulers.availability import NodeStates, UnreadableError
from malletrain.scavenger.sources.schedulers.polled import PolledSource
from malletrain.scavenger.sources.schedulers.query import Query

_SHOWN = 3
_WITHOUT = {
    "queue": "; without it planned starts stay hidden",
    "reservations": "; nodes with a reservation are not used while its begin is not known",
}


def examine_queries(build: Callable[[], PolledSource]) -> Iterator[Finding]:
    """Ask each query of a source once, as the source does, and say what was answered.

    Args:
        build: Makes the source; may raise InvalidInputError.
    """
    try:
        source = build()
    except InvalidInputError as error:
        yield Finding("queries", False, str(error), "correct this setting")
        return
    for query in source.queries.all():
        yield _examine(query)


def _examine(query: Query[Any]) -> Finding:
    check, command = f"query {query.name}", shlex.join(query.argv)
    try:
        answer = asyncio.run(query.read())
    except (SourceError, UnreadableError) as error:
        without = _WITHOUT.get(query.name, "")
        return Finding(check, False, one_line(str(error)), f"see what it prints for this user: {command}{without}")
    if not isinstance(answer, NodeStates):
        return Finding(check, True, _described(query.name, answer))
    unclear = ", ".join(f"{node} {one_line(state)!r}" for node, state in list(answer.unclear.items())[:_SHOWN])
    remedy = f"tell us which states these are; such nodes are not used: {command}"
    if not answer.known:
        remedy = f"name partitions or queues that have nodes: {command}"
    found = f"{len(answer.known)} nodes, {len(answer.idle)} idle, {len(answer.offline)} out of use"
    if answer.unclear:
        found += f", {len(answer.unclear)} in a state that is not known: {unclear}"
    return judge(check, bool(answer.known) and not answer.unclear, found, remedy)


def _described(name: str, answer: Any) -> str:
    if name == "classes":
        facts: Counter[NodeFacts] = Counter(answer.values())
        return f"{len(answer)} nodes of {len({entry.node_class for entry in facts})} kinds"
    if name == "topology":
        return f"{len(answer)} nodes in {len(set(answer.values()))} groups"
    return f"{len(answer)} {'planned starts' if name == 'queue' else name}"
