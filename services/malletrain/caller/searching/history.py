"""What a job has reported of a metric so far, for pruners: the one place where intermediate values are read."""

from __future__ import annotations

from collections.abc import Mapping

from malletrain.caller.searching.search_jobs import ServiceCalls

IS_KEPT = False
"""Whether intermediate values are kept at all. Not yet: a job's metrics are known at its end, so nothing is pruned."""


def intermediate_values(calls: ServiceCalls, job_id: str, metric: str) -> Mapping[int, float]:
    """Values of a metric by step, as far as they have been reported.

    Args:
        calls: The services.
        job_id: The job.
        metric: Name of the metric.
    """
    del calls, job_id, metric
    return {}
