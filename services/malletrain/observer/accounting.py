"""What idle nodes are used for as time passes, in node-seconds. Pure.

A GPU of a node counts as its share of the node, so that node-seconds add up where members of a fleet share nodes.
"""

from __future__ import annotations

from dataclasses import replace

from malletrain.common.gpus import gpu_number, node_of
from malletrain.model.node_use import NodeUse, use_of
from malletrain.observer.facts import StallFact
from malletrain.observer.history import (
    KEPT_S,
    MAX_FRAGMENTS,
    USES,
    History,
    Minute,
    NodePeriod,
    holders,
)
from malletrain.observer.job_facts import JobFact

_MINUTE_S = 60.0
_TRAINING, _STALLED, _UNASSIGNED = (USES.index(use) for use in (NodeUse.TRAINING, NodeUse.STALLED, NodeUse.UNASSIGNED))


def at(history: History, time: float) -> History:
    """The account at a later moment: node-seconds are counted until then. An earlier moment changes nothing."""
    if history.nodes is None or not history.heard_jobs:
        return replace(history, began=max(time, history.began), now=max(time, history.now))
    if time <= history.now:
        return history
    minutes = list(history.minutes)
    start = max(history.now, time - KEPT_S)
    while start < time:
        first = start - start % _MINUTE_S
        end = min(time, first + _MINUTE_S)
        if not minutes or minutes[-1].start < first:
            minutes.append(Minute(first))
        minutes[-1] = _longer(minutes[-1], history, end - start)
        start = end
    accounted = replace(history, now=time, minutes=tuple(minutes))
    rolled = len(minutes) > len(history.minutes) or len(accounted.fragments) > MAX_FRAGMENTS
    return _trim(accounted) if rolled else accounted


def use_by(job: JobFact, name: str, *, stalled: bool) -> NodeUse:
    """What a job uses a node or a GPU for that it has."""
    stopping = job.state == "STOPPING"
    return use_of(name, stopping=stopping, stalled=stalled, commanded=job.commanded, confirmed=job.confirmed)


def with_present_uses(history: History) -> History:
    """Fragments and counts as nodes and jobs are now."""
    if history.nodes is None or not history.heard_jobs:
        return history
    now, held = history.now, holders(history)
    labels = {node: held.get(node, ()) for node in history.nodes} | held
    open_, changed = dict(history.open), {}
    for node, place in history.open.items():
        if labels.get(node) != history.fragments[place].jobs:
            changed[place] = replace(history.fragments[place], end=now)
            del open_[node]
    added = [
        NodePeriod(node, jobs[0] if jobs else "", now, others=jobs[1:])
        for node, jobs in labels.items()
        if node not in open_
    ]
    fragments = history.fragments
    open_.update((fragment.node, len(fragments) + place) for place, fragment in enumerate(added))
    if changed:
        fragments = tuple(changed.get(place, fragment) for place, fragment in enumerate(fragments))
    with_fragments = replace(history, fragments=fragments + tuple(added), open=open_, unit_nodes=_unit_nodes(history))
    return replace(with_fragments, counts=_count_uses(with_fragments))


def _unit_nodes(history: History) -> dict[str, float]:
    """What a unit of each member of a fleet is of a node. One that holds nothing now keeps what it was."""
    units = {job_id: share for job_id, share in history.unit_nodes.items() if job_id in history.jobs}
    for job in history.jobs.values():
        gpus = [name for name in (*job.confirmed, *job.commanded) if gpu_number(name) is not None]
        if gpus:
            units[job.id] = sum(1.0 / gpus_of(history, job, node_of(name)) for name in gpus) / len(gpus)
    return units


def gpus_of(history: History, job: JobFact, node: str) -> int:
    """GPUs of a node that members of a job's fleet may have."""
    known = (history.nodes or {}).get(node)
    return job.fleet_gpus or max(1, known.gpu_count if known is not None else 1)


def _count_uses(history: History) -> tuple[float, ...]:
    """Idle nodes by use, in the order of `USES`."""
    nodes = history.nodes or {}
    shares: dict[str, dict[str, tuple[int, float]]] = {}  # of each node: use and share of what jobs have there, by name
    for job in history.jobs.values():
        fact = history.progress.get(job.id)
        for name in job.confirmed | job.commanded:
            node = node_of(name)
            if node in nodes:
                place = USES.index(use_by(job, name, stalled=fact is not None and fact.stalled))
                share = 1.0 / gpus_of(history, job, node) if gpu_number(name) is not None else 1.0
                shares.setdefault(node, {})[name] = (place, share)
    counts = [0.0] * len(USES)
    for node_shares in shares.values():
        total = max(1.0, sum(share for _, share in node_shares.values()))
        for place, share in node_shares.values():
            counts[place] += share / total
    counts[_UNASSIGNED] = max(0.0, len(nodes) - sum(counts))
    return tuple(counts)


def _longer(minute: Minute, history: History, seconds: float) -> Minute:
    node_seconds = tuple(
        total + seconds * count for total, count in zip(minute.node_seconds, history.counts, strict=True)
    )
    return replace(minute, node_seconds=node_seconds)


def charge(minutes: dict[float, Minute], stall: StallFact, unit: float) -> None:
    """Move the node-seconds of a stall from training to stalled, minute by minute.

    Args:
        minutes: Minutes by their begin; replaced where they change.
        unit: What one unit of the job's scale is of a node.
    """
    start = stall.time - stall.seconds
    while start < stall.time:
        first = start - start % _MINUTE_S
        end = min(stall.time, first + _MINUTE_S)
        minute = minutes.get(first)
        if minute is not None:
            node_seconds = list(minute.node_seconds)
            moved = min(node_seconds[_TRAINING], (end - start) * stall.to_nodes * unit)
            node_seconds[_TRAINING] -= moved
            node_seconds[_STALLED] += moved
            minutes[first] = replace(minute, node_seconds=tuple(node_seconds))
        start = end


def _trim(history: History) -> History:
    """Without what is older than a day, or too much."""
    oldest = history.now - KEPT_S
    minutes, releases = history.minutes, history.releases
    if minutes and minutes[0].start < oldest - _MINUTE_S:
        minutes = tuple(minute for minute in minutes if minute.start >= oldest - _MINUTE_S)
    if releases and releases[0].time < oldest:
        releases = tuple(release for release in releases if release.time >= oldest)
    return _compact(replace(history, minutes=minutes, releases=releases), oldest)


def _compact(history: History, oldest: float) -> History:
    """Without fragments that ended before `oldest`, if they are many; and of too many without the oldest."""
    periods = [fragment for fragment in history.fragments if fragment.end is None or fragment.end >= oldest]
    if len(periods) > MAX_FRAGMENTS:
        lasting = [fragment for fragment in periods if fragment.end is None]
        ended = [fragment for fragment in periods if fragment.end is not None]
        periods = ended[-max(0, MAX_FRAGMENTS * 9 // 10 - len(lasting)) :] + lasting
    elif len(history.fragments) - len(periods) < max(256, len(periods) // 10):
        return history
    places = {fragment.node: place for place, fragment in enumerate(periods) if fragment.end is None}
    return replace(history, fragments=tuple(periods), open=places, epoch=history.epoch + 1)
