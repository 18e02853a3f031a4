"""What keeps the dashboard, or the view in a terminal, from knowing what is. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from malletrain.observer.facts import SourceFact

NAMES = {
    "scavenger": "The Scavenger",
    "monitor": "Monitor",
    "job_manager": "JobManager",
    "profiler": "The Profiler",
    "allocator": "The Allocator",
}
_TELLS = {
    "scavenger": "idle nodes",
    "monitor": "samples, rates and stalls",
    "job_manager": "jobs and the nodes that they have",
    "profiler": "curves",
    "allocator": "plans",
}


@dataclass
class ServiceState:
    """Whether a service answers, as seen from here.

    Attributes:
        answers: Whether it answers; None before it was asked.
        since: Since when, in seconds since the epoch.
        refusal: Why it does not serve us; empty if it does.
    """

    answers: bool | None = None
    since: float = 0.0
    refusal: str = ""


def _in_utc(time_: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(time_))


def troubles(
    services: Mapping[str, ServiceState],
    source: SourceFact | None,
    who: str,
    time_of_day: Callable[[float], str] = _in_utc,
) -> list[str]:
    """A line for the services that do not answer, for each that does not serve us, and for a source without news.

    Args:
        services: By name.
        source: The source of idle nodes; None where the Scavenger was not asked yet.
        who: Who is refused, for people.
        time_of_day: Writes a time, which is in seconds since the epoch.
    """
    lines = []
    away = {name: state.since for name, state in services.items() if state.answers is False}
    if len(away) == 1:
        ((name, since),) = away.items()
        lines.append(f"{NAMES[name]} does not answer since {time_of_day(since)}: {_TELLS[name]} are shown as of then.")
    elif away:
        first, *others = (NAMES[name] for name in away)
        *between, last = (name.replace("The ", "the ") for name in others)
        who_else = f"{', '.join([first, *between])} and {last}"
        first_time = time_of_day(min(away.values()))
        lines.append(f"{who_else} do not answer, the first since {first_time}: what they tell is shown as of then.")
    lines += [
        f"{NAMES[name]} refuses {who}: {state.refusal}"
        for name, state in services.items()
        if state.refusal and name not in away
    ]
    if source is not None and source.stale:
        lines.append(f"The last good answer of {source.source} is too old: no node is offered.")
    return lines
