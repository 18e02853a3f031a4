"""The next history, from what the services say. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from malletrain.allocator.utilization.definition import MinuteUse
from malletrain.observer.accounting import at, charge, with_present_uses
from malletrain.observer.facts import NodeFact, PlanFact, ReleaseFact, SourceFact, StallFact
from malletrain.observer.history import KEPT_S, MAX_JOBS, MAX_RELEASES, History, RatePoint
from malletrain.observer.job_facts import CurveFact, JobFact, ProgressFact

_MINUTE_S = 60.0
_MAX_PLANS = 200
_MAX_PLAN_BYTES = 32 * 2**20
_MAX_STALLS = 64
"""Stalls kept of each job, as many as Monitor tells of."""
_MAX_RATES = 720
"""Points of a job's rate over time; beyond, every other one of the older half is dropped."""
_RATE_EVERY_S = 5.0


def nodes_changed(
    history: History, joined: Iterable[NodeFact], left: Iterable[str], time: float, *, snapshot: bool = False
) -> History:
    """Nodes have joined and left the idle set; in a snapshot, those that joined are all there are."""
    nodes = {} if snapshot or history.nodes is None else dict(history.nodes)
    for name in left:
        nodes.pop(name, None)
    nodes.update((node.name, node) for node in joined)
    return with_present_uses(replace(at(history, time), nodes=nodes))


def jobs_changed(history: History, changed: Iterable[JobFact], time: float, *, snapshot: bool = False) -> History:
    """Jobs are now as told. A snapshot tells of all that have not ended: others have ended meanwhile."""
    jobs = dict(history.jobs)
    by_id = {job.id: job for job in changed}
    jobs.update(by_id)
    if snapshot:
        for job in list(jobs.values()):
            if job.id not in by_id and not job.final:
                del jobs[job.id]
    ended = sorted((job for job in jobs.values() if job.final), key=lambda job: job.ended or 0.0)
    for job in ended[: max(0, len(ended) - MAX_JOBS)]:
        del jobs[job.id]
    updated = replace(at(history, time), jobs=jobs, heard_jobs=history.heard_jobs or snapshot)
    if len(ended) > MAX_JOBS or snapshot:
        updated = _without_unknown(updated)
    return with_present_uses(updated)


def progress_changed(history: History, changed: Iterable[ProgressFact], time: float) -> History:
    """Jobs have progressed."""
    history = at(history, time)
    progress, rates = dict(history.progress), dict(history.rates)
    was_stalled = {job_id for job_id, fact in progress.items() if fact.stalled}
    for fact in changed:
        if history.heard_jobs and fact.job_id not in history.jobs:
            continue
        progress[fact.job_id] = fact
        rates[fact.job_id] = _with_rate(rates.get(fact.job_id, ()), RatePoint(time, fact.rate, fact.nodes))
    updated = replace(history, progress=progress, rates=rates)
    stalled = {job_id for job_id, fact in progress.items() if fact.stalled}
    return with_present_uses(updated) if stalled != was_stalled else updated


def stalls_measured(history: History, measured: Iterable[StallFact]) -> History:
    """Rescales were measured. Their stalls are taken from what counted as training."""
    stalls, minutes = dict(history.stalls), {minute.start: minute for minute in history.minutes}
    for stall in sorted(measured, key=lambda stall: stall.time):
        known = stalls.get(stall.job_id, ())
        if known and stall.time <= known[-1].time:
            continue
        stalls[stall.job_id] = (*known, stall)[-_MAX_STALLS:]
        charge(minutes, stall, history.unit_nodes.get(stall.job_id, 1.0))
    return replace(history, stalls=stalls, minutes=tuple(minutes[start] for start in sorted(minutes)))


def curves_changed(history: History, changed: Iterable[CurveFact]) -> History:
    """Curves are now as told."""
    known = {curve.job_id: curve for curve in changed if not history.heard_jobs or curve.job_id in history.jobs}
    return replace(history, curves={**history.curves, **known})


def plan_known(history: History, plan: PlanFact) -> History:
    """A plan was applied or refused."""
    plans = [*(known for known in history.plans if known.generation != plan.generation), plan][-_MAX_PLANS:]
    while sum(len(known.problem) for known in plans) > _MAX_PLAN_BYTES and len(plans) > 1:
        del plans[0]
    return replace(history, plans=tuple(plans))


def nodes_released(history: History, releases: Iterable[ReleaseFact]) -> History:
    """Nodes that were taken back are free of our processes."""
    return replace(history, releases=(*history.releases, *releases)[-MAX_RELEASES:])


def utilization_recorded(history: History, minutes: Iterable[MinuteUse]) -> History:
    """The Allocator has recorded U of more minutes; those that are known already are replaced."""
    known = {minute.start: minute for minute in (*history.utilization, *minutes)}
    oldest = history.now - KEPT_S - _MINUTE_S
    return replace(history, utilization=tuple(known[start] for start in sorted(known) if start >= oldest))


def stays_known(history: History, listed: Iterable[NodeFact]) -> History:
    """Nodes that are in the idle set are known better by now: how much longer they are expected to stay, say."""
    if history.nodes is None:
        return history
    known = {node.name: node for node in listed if node.name in history.nodes}
    return replace(history, nodes={**history.nodes, **known})


def source_seen(history: History, source: SourceFact) -> History:
    """Take over whether the source of idle nodes works."""
    return history if history.source == source else replace(history, source=source)


def _with_rate(rates: tuple[RatePoint, ...], point: RatePoint) -> tuple[RatePoint, ...]:
    if rates and point.time - rates[-1].time < _RATE_EVERY_S and rates[-1].nodes == point.nodes:
        return rates
    if len(rates) >= _MAX_RATES:
        half = _MAX_RATES // 2
        rates = (*rates[:half:2], *rates[half:])
    return (*rates, point)


def _without_unknown(history: History) -> History:
    """Without what is known of jobs that are not kept."""
    known = history.jobs.keys()
    return replace(
        history,
        progress={job_id: fact for job_id, fact in history.progress.items() if job_id in known},
        curves={job_id: fact for job_id, fact in history.curves.items() if job_id in known},
        stalls={job_id: facts for job_id, facts in history.stalls.items() if job_id in known},
        rates={job_id: points for job_id, points in history.rates.items() if job_id in known},
    )
