"""The MILP on counts: a binary variable per (job, size), a row per job and limited owner, one for the pool. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from malletrain.allocator.problem.objective import ScaleValues
from malletrain.allocator.solvers.milp import Floats, MilpModel
from malletrain.allocator.solvers.owner_knapsack import OwnerGroup


def counts_model(per_job: Sequence[ScaleValues], pool: int, groups: Sequence[OwnerGroup] = ()) -> MilpModel:
    """The model that chooses one size per job; its solution is read by `read_counts`.

    Args:
        per_job: The jobs.
        pool: Number of nodes.
        groups: Owners with a limit.
    """
    useful = [scales.useful() for scales in per_job]
    lengths = np.asarray([len(entry) for entry in useful], dtype=np.int64)
    total = int(lengths.sum())
    values = np.concatenate(
        [np.zeros(0), *(scales.values[entry] for scales, entry in zip(per_job, useful, strict=True))]
    )
    sizes = np.concatenate([np.zeros(0), *(scales.sizes[entry] for scales, entry in zip(per_job, useful, strict=True))])
    everything = np.arange(total, dtype=np.int32)
    jobs = len(per_job)
    firsts = np.concatenate(([0], np.cumsum(lengths)))
    owned = [_entries(firsts, group) for group in groups]
    # HiGHS compares gaps of 1e-9 with values of up to 1e7: scale the objective to at most 1.
    scale = float(np.abs(values).max()) if total else 1.0
    return MilpModel(
        cost=values / (scale or 1.0),
        lower=np.zeros(total),
        upper=np.ones(total),
        integer=np.ones(total, dtype=np.bool_),
        row_lower=np.concatenate((np.ones(jobs), np.full(1 + len(groups), -np.inf))),
        row_upper=np.concatenate((np.ones(jobs), [float(pool)], [float(group.limit) for group in groups])),
        start=np.concatenate((firsts, 2 * total + np.cumsum([0, *map(len, owned)]))).astype(np.int32),
        index=np.concatenate((everything, everything, *owned)).astype(np.int32),
        value=np.concatenate((np.ones(total), sizes, *(sizes[entries] for entries in owned))),
    )


def _entries(firsts: NDArray[np.int64], group: OwnerGroup) -> NDArray[np.int64]:
    """The variables of an owner's jobs."""
    return np.concatenate([np.arange(firsts[job], firsts[job + 1]) for job in group.jobs])


def solution_of(per_job: Sequence[ScaleValues], wanted: Sequence[int]) -> Floats:
    """A solution of `counts_model` near given numbers of nodes: each job has the largest scale that is not above.

    A job without such a scale has its smallest one, so the solution may be infeasible.

    Args:
        per_job: The jobs, as the model has them.
        wanted: Nodes of each job.
    """
    parts = [np.zeros(0)]
    for scales, nodes in zip(per_job, wanted, strict=True):
        sizes = scales.sizes[scales.useful()]
        chosen = np.zeros(len(sizes))
        chosen[max(0, int(np.searchsorted(sizes, nodes, side="right")) - 1)] = 1.0
        parts.append(chosen)
    return np.concatenate(parts)


def read_counts(per_job: Sequence[ScaleValues], solution: Floats) -> list[int]:
    """The size of every job in a solution of `counts_model`, in nodes."""
    counts = []
    first = 0
    for scales in per_job:
        useful = scales.useful()
        counts.append(int(scales.sizes[useful[int(np.argmax(solution[first : first + len(useful)]))]]))
        first += len(useful)
    return counts
