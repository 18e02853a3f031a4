"""Generated workloads with traits of Theta's and Cori's, whose logs are not public with their burst buffer requests.

Sizes, limits and the share of the limit that jobs use are like those published of the two machines; users submit
several like jobs at a time. These are not the machines' own jobs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.problem import MachineResources
from malletrain.simulator.batch.policies import PolicyName
from malletrain.simulator.batch.workload import BatchJob, BatchWorkload

_HOUR_S = 3600
_TB = 1000
MEASURED = (0.1, 0.9)
"""Shares of the submitted time between which metrics are measured."""


@dataclass(frozen=True)
class MachineProfile:
    """A machine and the traits of its jobs.

    Attributes:
        nodes: Nodes.
        burst_buffer_gb: Burst buffer in GB.
        policy: Base scheduler.
        sizes: Numbers of nodes, each with its weight and the limits in hours that such jobs ask for.
        asking: Share of the jobs that ask for burst buffer.
        max_gb: Largest request in GB.
        like_jobs: Mean number of like jobs that are submitted together.
    """

    nodes: int
    burst_buffer_gb: int
    policy: PolicyName
    sizes: Mapping[int, tuple[float, tuple[float, ...]]]
    asking: float
    max_gb: int
    like_jobs: float


_SMALL_LIMITS = (0.33, 0.5, 1.0, 2.0, 3.0, 6.0)
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
            285 * _TB,
            3.0,
        ),
        "cori": MachineProfile(
            12_076,
            1_800 * _TB,
            PolicyName.EASY,
            {
                1: (45, (0.5, 2.0, 6.0, 12.0, 24.0)),
                4: (20, (0.5, 2.0, 6.0, 12.0)),
                16: (15, (0.5, 2.0, 6.0, 12.0)),
                64: (10, (0.5, 2.0, 6.0, 12.0)),
                256: (5, (1.0, 3.0, 6.0)),
                1024: (2, (1.0, 3.0, 6.0)),
                4096: (0.4, (1.0, 3.0)),
            },
            0.00618,
            165 * _TB,
            3.0,
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


def _like_jobs(profile: MachineProfile, rng: random.Random) -> list[tuple[int, int, int, int, bool]]:
    """Nodes, run time, limit, GB, and whether it is the first of its kind."""
    nodes = rng.choices(list(profile.sizes), [weight for weight, _ in profile.sizes.values()])[0]
    limit_s = int(_HOUR_S * rng.choice(profile.sizes[nodes][1]))
    usual = rng.betavariate(0.6, 0.9)
    count = 1 + int(rng.expovariate(1.0 / (profile.like_jobs - 1.0)))
    asks = rng.random() < profile.asking
    found = []
    for index in range(min(count, 20)):
        share = min(1.0, max(0.003, usual * rng.uniform(0.7, 1.3)))
        gb = min(profile.max_gb, max(1, int(rng.lognormvariate(0.0, 2.2) * 10 * _TB))) if asks else 0
        found.append((nodes, max(1, int(share * limit_s)), limit_s, gb, index == 0))
    return found
