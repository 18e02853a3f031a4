"""What has happened between two histories, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from malletrain.observer.history import History
from malletrain.observer.job_facts import JobFact
from malletrain.observer.troubles import NAMES

_MAX_NAMED = 6


@dataclass(frozen=True)
class Event:
    """Something that has happened.

    Attributes:
        time: When it was seen, in seconds since the epoch.
        text: What.
    """

    time: float
    text: str


def events_between(before: History, after: History, time: float) -> list[Event]:
    """What has changed. What is heard first of a service is its present state and no event.

    Args:
        before: What was known before.
        after: What is known now.
        time: Seconds since the epoch.
    """
    texts: list[str] = []
    if before.nodes is not None and after.nodes is not None:
        texts += _named(after.nodes.keys() - before.nodes.keys(), "joined")
        texts += _named(before.nodes.keys() - after.nodes.keys(), "left")
    if before.heard_jobs and before.jobs is not after.jobs:
        texts += [text for job in after.jobs.values() for text in _of_job(before.jobs.get(job.id), job)]
    known = {plan.generation for plan in before.plans}
    for plan in after.plans if before.plans else ():
        if plan.generation not in known:
            outcome = "" if plan.applied else f" was refused ({plan.refusal})"
            texts.append(f"plan {plan.generation}{outcome}: {plan.trigger}")
    return [Event(time, text) for text in texts]


def service_events(before: Mapping[str, bool | None], after: Mapping[str, bool | None], time: float) -> list[Event]:
    """Services that have stopped or begun to answer.

    Args:
        before: Whether each answered, by name; None: not known.
        after: Whether each answers now.
        time: Seconds since the epoch.
    """
    return [
        Event(time, f"{NAMES[name]} {'answers again' if answers else 'does not answer'}")
        for name, answers in after.items()
        if answers is not None and answers != before.get(name) and (before.get(name) is not None or not answers)
    ]


def _named(names: Iterable[str], what: str) -> list[str]:
    known = sorted(names)
    if not known:
        return []
    more = f" and {len(known) - _MAX_NAMED} more" if len(known) > _MAX_NAMED else ""
    return [f"{', '.join(known[:_MAX_NAMED])}{more} {what}"]


def _of_job(before: JobFact | None, now: JobFact) -> list[str]:
    if before is now:
        return []
    why = f": {now.reason}" if now.reason else ""
    if before is None:
        return [f"{now.id} {now.name} is {now.state}{why}"]
    if before.state != now.state:
        return [f"{now.id} {before.state} → {now.state}{why}"]
    if before.confirmed != now.confirmed and now.confirmed:
        return [f"{now.id} trains on {len(now.confirmed)}, {len(before.confirmed)} before{why}"]
    return []
