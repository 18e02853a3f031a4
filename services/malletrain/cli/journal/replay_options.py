"""How a journal is replayed: with the settings in force, and how much of it."""

from __future__ import annotations

from malletrain.cli.shared.output import parse_duration
from malletrain.cli.shared.settings import AllSettings
from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.journal.record import Journal
from malletrain.simulator.replay.options import ReplayOptions


def options_in_force(settings: AllSettings) -> ReplayOptions:
    """All that decides about nodes and jobs; the duration is to be set."""
    allocator, manager = settings.allocator, settings.job_manager
    return ReplayOptions(
        duration_s=1.0,
        forward_s=allocator.forward_seconds,
        forward_policy=allocator.forward_policy,
        forward_share=allocator.forward_share,
        max_parallel=manager.max_parallel,
        max_parallel_per_owner=manager.max_parallel_per_owner,
        max_nodes_per_owner=allocator.max_nodes_per_owner,
        fair_share_half_life_s=manager.fair_share_half_life_seconds,
        burst_buffer_gb=manager.burst_buffer_gb,
        admission=manager.admission,
        window=manager.window,
        starvation_bound=manager.starvation_bound,
        cost_model=allocator.cost_model,
        metric=allocator.objective_metric,
    )


_MIN_S = 1.0


def span_of(journal: Journal, since: str | None) -> tuple[float, float, list[str]]:
    """Begin and end of what is replayed, in seconds since the epoch, and what to say about it.

    Args:
        since: How long before the journal's end it begins, e.g. 24h; None: as early as the idle set is known.

    Raises:
        InvalidInputError: `since` is no span of time, or nothing has happened in the journal yet.
    """
    first, end = journal.begin_unix, journal.end_unix
    if end - first < _MIN_S:
        raise InvalidInputError("--journal", "a journal of at least a second", f"{end - first:.1f} s")
    if since is None:
        return first, end, []
    begin = end - max(_MIN_S, parse_duration(since, "--since"))
    if begin < first:
        hours = (end - first) / 3600
        return first, end, [f"The idle set is known for the last {hours:.2f} h only, and not for {since}."]
    return begin, end, []
