"""Whether a replay by the services engine makes the plans that the services have made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from malletrain.allocator.history.plan_store import PlanStore
from malletrain.allocator.machine.stimuli import Plan, PlanAnswered, PlanOutcome
from malletrain.cli.shared.settings import AllSettings
from malletrain.runtime.database.migrating import open_database
from malletrain.simulator.journal.conversion import journal_input
from malletrain.simulator.journal.record import Journal
from malletrain.simulator.replay.node_events import node_events
from malletrain.simulator.replay.options import ReplayOptions
from malletrain.simulator.services.engine import run_services_replay

_ALL = 10**9


@dataclass(frozen=True)
class TimedPlan:
    """An applied plan.

    Attributes:
        second: When it was applied, in seconds from the beginning of the journal.
        scales: Nodes of each job that got some.
        in_part: Whether something was left out.
        boots: Jobs of which it reckoned that new workers boot.
    """

    second: float
    scales: Mapping[str, int]
    in_part: bool
    boots: int


def live_plans(settings: AllSettings, journal: Journal) -> list[TimedPlan]:
    """The plans that the services have made."""
    store = PlanStore(open_database(settings.database("allocator")), _ALL)
    return [
        TimedPlan(
            plan.create_time.ToMicroseconds() / 1e6 - journal.begin_unix,
            {entry.job_id: len(entry.nodes) for entry in plan.allocation.assignments if entry.nodes},
            bool(plan.omissions),
            sum(job.boot_seconds > 0 for job in plan.problem.jobs),
        )
        for plan in reversed(list(store.newest_first()))
        if plan.applied
    ]


def replayed_plans(settings: AllSettings, journal: Journal) -> list[TimedPlan]:
    """The plans that the services engine makes of the same past."""
    begin, end = journal.begin_unix, journal.end_unix
    found, plans = journal_input(journal, begin, end), list[TimedPlan]()
    options = ReplayOptions(
        duration_s=end - begin,
        forward_s=settings.allocator.forward_seconds,
        max_parallel=settings.job_manager.max_parallel,
    )

    def note(second: float, plan: Plan, answer: PlanAnswered) -> None:
        if answer.outcome is PlanOutcome.APPLIED:
            scales = {entry.job_id: len(entry.nodes) for entry in plan.allocation.assignments if entry.nodes}
            boots = sum(job.boot_seconds > 0 for job in plan.problem.whole.jobs)
            plans.append(TimedPlan(second, scales, bool(answer.omissions), boots))

    run_services_replay(node_events(found.trace, end - begin), found.trace.nodes, found.jobs, options, on_plan=note)
    return plans


def shared_part(live: Sequence[TimedPlan], replayed: Sequence[TimedPlan], until: float) -> float:
    """Node-seconds that both give to the same job, as a part of those that one of them gives.

    Args:
        live: What was.
        replayed: What the replay has made.
        until: End in seconds.
    """
    times = sorted({0.0, until, *(plan.second for plan in (*live, *replayed) if 0 <= plan.second < until)})
    both = either = 0.0
    for begin, end in pairwise(times):
        one, other = _scales_at(live, begin), _scales_at(replayed, begin)
        for job_id in {*one, *other}:
            both += (end - begin) * min(one.get(job_id, 0), other.get(job_id, 0))
            either += (end - begin) * max(one.get(job_id, 0), other.get(job_id, 0))
    return both / either if either else 1.0


def _scales_at(plans: Sequence[TimedPlan], second: float) -> Mapping[str, int]:
    return next((plan.scales for plan in reversed(plans) if plan.second <= second), {})
