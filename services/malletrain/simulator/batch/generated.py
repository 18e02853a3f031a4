"""Generated workloads with traits of Theta's and Cori's, and recipes: variants with other requests (Fan et al.).

Sizes, limits and the share of the limit that jobs use are like those published of the two machines; users submit
several like jobs at a time. These are not the machines' own jobs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.problem import MachineResources
from malletrain.simulator.batch.policies import PolicyName
from malletrain.simulator.batch.workload import BatchJob, BatchWorkload

_HOUR_S = 3600
_TB = 1000
MEASURED = (0.1, 0.9)
"""Shares of the submitted time between which metrics are measured."""


class RequestSizes(Protocol):
    """How much burst buffer jobs ask for that ask for any."""

    def draw(self, rng: random.Random) -> int:
        """One request in GB, at least 1."""


@dataclass(frozen=True)
class LognormalSizes:
    """Requests of a lognormal distribution.

    Attributes:
        median_gb: Median in GB.
        sigma: Standard deviation of the logarithm.
        max_gb: Largest request in GB; larger draws are cut to it.
    """

    median_gb: int
    sigma: float
    max_gb: int

    def draw(self, rng: random.Random) -> int:
        """One request in GB, at least 1."""
        return min(self.max_gb, max(1, int(rng.lognormvariate(0.0, self.sigma) * self.median_gb)))


@dataclass(frozen=True)
class TwoPartSizes:
    """Small requests, large ones, and a few of one extreme size.

    Attributes:
        split_gb: Small requests are log-uniform from 1 GB to this, large ones begin above it.
        large: Share of the requests that are large.
        usual_max_gb: Largest request but the extreme ones, in GB.
        exponent: The density of large requests falls with this power of their size; not 1.
        extreme_gb: The extreme size in GB.
        extreme: Share of the requests that have it.
    """

    split_gb: int
    large: float
    usual_max_gb: int
    exponent: float
    extreme_gb: int
    extreme: float

    def draw(self, rng: random.Random) -> int:
        """One request in GB, at least 1."""
        kind, place = rng.random(), rng.random()
        if kind < self.extreme:
            return self.extreme_gb
        if kind >= self.large:
            return max(1, int(self.split_gb**place))
        power = 1.0 - self.exponent
        low, high = self.split_gb**power, self.usual_max_gb**power
        return min(self.usual_max_gb, int((low + place * (high - low)) ** (1.0 / power)) + 1)


@dataclass(frozen=True)
class MachineProfile:
    """A machine and the traits of its jobs.

    Attributes:
        nodes: Nodes.
        burst_buffer_gb: Burst buffer in GB that jobs may have, without persistent reservations.
        policy: Base scheduler.
        sizes: Numbers of nodes, each with its weight and the limits in hours that such jobs ask for.
        asking: Share of the jobs that ask for burst buffer.
        requests: How much these ask for.
        like_jobs: Mean number of like jobs that are submitted together.
        originals: How many requests the machine's own log has, of which the paper's recipes draw; 0: they draw of the
            workload's own requests, or where it has none, of the recipes' distribution.
    """

    nodes: int
    burst_buffer_gb: int
    policy: PolicyName
    sizes: Mapping[int, tuple[float, tuple[float, ...]]]
    asking: float
    requests: RequestSizes
    like_jobs: float
    originals: int = 0


_CORI_GB = 1_800 * _TB
"""A third of it is reserved persistently, whatever jobs run."""
_SMALL_LIMITS = (0.33, 0.5, 1.0, 2.0, 3.0, 6.0)
_CORI_LIMITS = (0.5, 2.0, 6.0, 12.0)
PROFILES: Mapping[str, MachineProfile] = MappingProxyType(
    {
        "theta": MachineProfile(
            4392,
            1_260 * _TB,
            PolicyName.WFP,
            {
                1: (16, _SMALL_LIMITS),
                2: (18, _SMALL_LIMITS),
                8: (21, _SMALL_LIMITS),
                32: (6, (0.5, 1.0, 2.0, 3.0)),
                64: (4, (0.5, 1.0, 2.0, 3.0)),
                128: (18, (0.5, 1.0, 2.0, 3.0, 3.0)),
                256: (6, (1.0, 3.0, 6.0, 6.0)),
                512: (4, (1.0, 3.0, 6.0, 9.0)),
                1024: (1.5, (1.0, 6.0, 12.0)),
                2048: (0.6, (3.0, 12.0)),
                4096: (0.2, (1.0, 6.0)),
            },
            0.1718,
            LognormalSizes(10 * _TB, 2.2, 285 * _TB),
            3.0,
        ),
        "cori": MachineProfile(
            12_076,
            _CORI_GB - _CORI_GB // 3,
            PolicyName.EASY,
            {
                1: (28, _CORI_LIMITS),
                4: (14, _CORI_LIMITS),
                16: (13, _CORI_LIMITS),
                64: (15, _CORI_LIMITS),
                256: (18, (1.0, 3.0, 6.0, 12.0)),
                1024: (11, (1.0, 3.0, 6.0, 12.0)),
                4096: (1.5, (1.0, 3.0, 6.0)),
            },
            0.00618,
            TwoPartSizes(_TB, 0.204 / 0.618, 65 * _TB, 0.6, 165 * _TB, 0.0005),
            3.0,
            originals=16_111,
        ),
    }
)


def generate(profile: MachineProfile, jobs: int, load: float, seed: int) -> BatchWorkload:
    """A workload.

    Args:
        profile: The machine and its traits.
        jobs: Number of jobs, at least 10.
        load: Node-seconds of all jobs by those of the machine over the time of their submissions, above 0.
        seed: Of the random numbers.

    Raises:
        InvalidInputError: an argument is out of its range.
    """
    if jobs < 10:
        raise InvalidInputError("jobs", "at least 10", jobs)
    if not load > 0:
        raise InvalidInputError("load", "above 0", load)
    rng = random.Random(seed)
    shapes: list[tuple[int, int, int, int, bool]] = []
    while len(shapes) < jobs:
        shapes += _like_jobs(profile, rng)
    shapes = shapes[:jobs]
    span_s = sum(nodes * run_s for nodes, run_s, _, _, _ in shapes) / (profile.nodes * load)
    gaps = [rng.expovariate(1.0) if first else rng.uniform(0.0, 0.02) for *_, first in shapes]
    scale, now, rows = span_s / sum(gaps), 0.0, list[BatchJob]()
    for number, ((nodes, run_s, limit_s, gb, _), gap) in enumerate(zip(shapes, gaps, strict=True), 1):
        now += gap * scale
        rows.append(BatchJob(number, float(int(now)), nodes, float(run_s), float(limit_s), 0, gb))
    measured = (MEASURED[0] * rows[-1].submit_s, MEASURED[1] * rows[-1].submit_s)
    resources = MachineResources(profile.nodes, profile.burst_buffer_gb)
    return BatchWorkload(tuple(rows), profile.nodes, resources=resources, measured_s=measured)


def original_requests(profile: MachineProfile, seed: int) -> tuple[int, ...]:
    """As many requests in GB as the machine's own log has; none where the profile says 0.

    A generated workload is so short that it has only a few of its own, and hardly any large one.
    """
    rng = random.Random(f"{seed} originals")
    return tuple(profile.requests.draw(rng) for _ in range(profile.originals))


def _like_jobs(profile: MachineProfile, rng: random.Random) -> list[tuple[int, int, int, int, bool]]:
    """Nodes, run time, limit, GB, and whether it is the first of its kind."""
    nodes = rng.choices(list(profile.sizes), [weight for weight, _ in profile.sizes.values()])[0]
    limit_s = int(_HOUR_S * rng.choice(profile.sizes[nodes][1]))
    usual = rng.betavariate(0.6, 0.9)
    count = 1 + int(rng.expovariate(1.0 / (profile.like_jobs - 1.0)))
    asks = rng.random() < profile.asking
    alike = []
    for index in range(min(count, 20)):
        share = min(1.0, max(0.003, usual * rng.uniform(0.7, 1.3)))
        gb = profile.requests.draw(rng) if asks else 0
        alike.append((nodes, max(1, int(share * limit_s)), limit_s, gb, index == 0))
    return alike


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


_SHARE_AND_MIN_GB = {
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
        seed: Of the random numbers.
        originals: Requests in GB to draw from in place of the log's own; empty: the log's own.

    Raises:
        InvalidInputError: the machine has no burst buffer, or less than the recipe's least request.
    """
    rng = random.Random(f"{seed} requests")
    known = originals or [job.burst_buffer_gb for job in workload.jobs]
    drawn = _with_burst_buffer(
        workload, known, *_SHARE_AND_MIN_GB[recipe if recipe in _SHARE_AND_MIN_GB else WorkloadRecipe.S2], rng
    )
    if recipe in _SHARE_AND_MIN_GB:
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
