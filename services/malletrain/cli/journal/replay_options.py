"""The settings in force as options of a replay."""

from __future__ import annotations

from malletrain.cli.shared.settings import AllSettings
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
