"""Recipes: variants of a workload with other requests for burst buffer and SSD (Fan et al., HPDC 2019, §4.1 and §5)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.problem import MachineResources
from malletrain.simulator.batch.workload import BatchJob, BatchWorkload

_TB = 1000
_MEDIAN_GB, _SIGMA = 10 * _TB, 2.2
"""Where a log has no requests of its own, they are drawn from a lognormal distribution."""
_MAX_GB = 285 * _TB
_SMALL_GB, _LARGE_GB = 128, 256
_DRAWS = 100_000


class WorkloadRecipe(StrEnum):
    """Names of the recipes."""

    S1 = "s1"
    S2 = "s2"
    S3 = "s3"
    S4 = "s4"
    S5 = "s5"
    S6 = "s6"
    S7 = "s7"


_SHARE_AND_LEAST = {
    WorkloadRecipe.S1: (0.50, 5 * _TB),
    WorkloadRecipe.S2: (0.75, 5 * _TB),
    WorkloadRecipe.S3: (0.50, 20 * _TB),
    WorkloadRecipe.S4: (0.75, 20 * _TB),
}
_SHARE_OF_SMALL = {WorkloadRecipe.S5: 0.8, WorkloadRecipe.S6: 0.5, WorkloadRecipe.S7: 0.2}


def derive(workload: BatchWorkload, recipe: WorkloadRecipe, seed: int, originals: Sequence[int] = ()) -> BatchWorkload:
    """A workload with requests drawn anew.

    S1 to S4 draw burst buffer for all jobs: for a share of them from the log's requests above a threshold, or from a
    lognormal distribution where it has none. S5 to S7 are S2 with SSD requests, on a machine half of whose nodes have
    128 GB and half 256 GB.

    Args:
        workload: Jobs and machine, which must have burst buffer.
        recipe: The recipe.
        seed: Of the random numbers.
        originals: Requests in GB to draw from in place of the log's own; empty: the log's own.

    Raises:
        InvalidInputError: the machine has no burst buffer, or less than the recipe's least request.
    """
    rng = random.Random(f"{seed} requests")
    known = originals or [job.burst_buffer_gb for job in workload.jobs]
    drawn = _with_burst_buffer(
        workload, known, *_SHARE_AND_LEAST[recipe if recipe in _SHARE_AND_LEAST else WorkloadRecipe.S2], rng
    )
    if recipe in _SHARE_AND_LEAST:
        return drawn
    return _with_ssd(drawn, _SHARE_OF_SMALL[recipe], random.Random(f"{seed} SSD"))


def _with_burst_buffer(
    workload: BatchWorkload, known: Sequence[int], share: float, min_gb: int, rng: random.Random
) -> BatchWorkload:
    machine = workload.resources
    max_gb = min(_MAX_GB, machine.burst_buffer_gb if machine else 0)
    if machine is None or max_gb <= min_gb:
        raise InvalidInputError("burst_buffer", f"a machine with more than {min_gb} GB, as the recipe asks", max_gb)
    originals = [gb for gb in known if min_gb < gb <= max_gb]
    jobs = tuple(
        replace(
            job,
            burst_buffer_gb=_request_gb(originals, min_gb, max_gb, rng) if rng.random() < share else 0,
            ssd_gb=0,
        )
        for job in workload.jobs
    )
    return replace(workload, jobs=jobs, resources=MachineResources(workload.nodes, machine.burst_buffer_gb))


def _request_gb(originals: list[int], min_gb: int, max_gb: int, rng: random.Random) -> int:
    if originals:
        return rng.choice(originals)
    for _ in range(_DRAWS):
        drawn = rng.lognormvariate(0.0, _SIGMA) * _MEDIAN_GB
        if min_gb < drawn <= max_gb:
            return int(drawn)
    raise InvalidInputError("burst_buffer", f"more than {min_gb} GB by far, so that requests can be drawn", max_gb)


def _with_ssd(workload: BatchWorkload, share: float, rng: random.Random) -> BatchWorkload:
    burst_buffer_gb = workload.resources.burst_buffer_gb if workload.resources else 0
    large = workload.nodes // 2
    machine = MachineResources(workload.nodes, burst_buffer_gb, large, _SMALL_GB, _LARGE_GB)
    jobs = tuple(replace(job, ssd_gb=_ssd_gb(job, large, share, rng)) for job in workload.jobs)
    return replace(workload, jobs=jobs, resources=machine)


def _ssd_gb(job: BatchJob, large: int, share: float, rng: random.Random) -> int:
    small = rng.random() < share or job.nodes > large
    return rng.randint(0, _SMALL_GB) if small else rng.randint(_SMALL_GB + 1, _LARGE_GB)
