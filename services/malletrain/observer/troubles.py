"""What keeps the dashboard, or the view in a terminal, from knowing what is. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping
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
    """How a service fares, as seen from here.

    Attributes:
        answers: Whether it answers; None before it was asked.
        since: Since when, in seconds since the epoch.
        refusal: Why it does not serve us; empty if it does.
    """

    answers: bool | None = None
    since: float = 0.0
    refusal: str = ""


def troubles(services: Mapping[str, ServiceState], source: SourceFact | None, who: str) -> list[str]:
    """A line for each service that does not answer or serve us, and for a source that has no news.

    Args:
        services: By name.
        source: The source of idle nodes; None where the Scavenger was not asked yet.
        who: Who is refused, for people.
    """
    lines = []
    for name, state in services.items():
        if state.answers is False:
            since = time.strftime("%H:%M:%S", time.gmtime(state.since))
            lines.append(f"{NAMES[name]} does not answer since {since} UTC: {_TELLS[name]} are shown as of then.")
        elif state.refusal:
            lines.append(f"{NAMES[name]} refuses {who}: {state.refusal}")
    if source is not None and source.stale:
        lines.append(f"The last good answer of {source.source} is too old: no node is offered.")
    return lines
