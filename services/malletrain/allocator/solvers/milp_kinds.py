"""The MILP by kinds of nodes, for problems in which not all nodes suit all jobs.

As `milp_counts`, with one variable more for each job and kind: how many nodes of that kind the job has. Given the
scales, these are a flow between jobs and kinds with whole limits, so they need not be integer variables. With h the
nodes of a kind that a job holds, u the most that it may have, and g (or G) whether its scale is at least (or above)
what it holds in all:

    h g <= x <= h + (u - h) G

so that a job that grows keeps its nodes, and one that shrinks takes no others (BFTrainer, Eq. 6).

A job whose nodes must all be in one group has a binary variable for each group that it could be in, of which one is 1:
it has nodes of that group's kinds alone. One whose replicas must be in one group each has an integer variable for each
group, which counts them: its nodes of that group's kinds are so many replicas.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from malletrain.allocator.problem.objective import ScaleValues
from malletrain.allocator.solvers.kind_flow import KindTable
from malletrain.allocator.solvers.milp import Floats, MilpBuilder, MilpModel
from malletrain.allocator.solvers.owner_knapsack import OwnerGroup


def kinds_model(
    per_job: Sequence[ScaleValues], table: KindTable, groups: Sequence[OwnerGroup] = (), max_nodes: int | None = None
) -> MilpModel:
    """The model that chooses one size per job; its solution is read by `milp_counts.read_counts`.

    Args:
        per_job: The jobs.
        table: Nodes and jobs by kind.
        groups: Owners with a limit.
        max_nodes: Most nodes of all jobs together; None: as many as there are.
    """
    builder = MilpBuilder()
    useful = [scales.useful() for scales in per_job]
    largest = max((float(np.abs(scales.values).max()) for scales in per_job), default=0.0) or 1.0
    sizes = [scales.sizes[entry].tolist() for scales, entry in zip(per_job, useful, strict=True)]
    chosen = [
        builder.variables(len(entry), (scales.values[entry] / largest).tolist())
        for scales, entry in zip(per_job, useful, strict=True)
    ]
    inside = {job: _groups(builder, table, job) for job in table.options}
    shares: list[list[tuple[int, float]]] = [[] for _ in table.capacity]
    for job, own in enumerate(sizes):
        _add_job(builder, table, job, list(zip(chosen[job], own, strict=True)), shares, inside.get(job, ()))
    for terms, capacity in zip(shares, table.capacity, strict=True):
        if terms:
            builder.row(terms, upper=float(capacity))
    for group in groups:
        builder.row(_scales(chosen, sizes, group.jobs), upper=float(group.limit))
    if max_nodes is not None:
        builder.row(_scales(chosen, sizes, range(len(sizes))), upper=float(max_nodes))
    return builder.build()


def _groups(builder: MilpBuilder, table: KindTable, job: int) -> list[int]:
    """A variable for each group of a job: whether it is there, or how many replicas of it are."""
    own = table.options[job]
    if not (replica := table.replicas.get(job, 0)):
        return builder.variables(len(own))
    sizes = [sum(table.capacity[kind] for kind in kinds) for kinds in own]
    return [at for size in sizes for at in builder.variables(1, upper=float(size // replica))]


def _scales(chosen: Sequence[list[int]], sizes: Sequence[list[int]], jobs: Sequence[int]) -> list[tuple[int, float]]:
    """The nodes of some jobs together, as terms."""
    return [(at, float(size)) for job in jobs for at, size in zip(chosen[job], sizes[job], strict=True)]


def _add_job(
    builder: MilpBuilder,
    table: KindTable,
    job: int,
    own: Sequence[tuple[int, int]],
    shares: Sequence[list[tuple[int, float]]],
    inside: Sequence[int],
) -> None:
    replica = table.replicas.get(job, 0)
    if inside and not replica:
        builder.row([(at, 1.0) for at in inside], lower=1.0, upper=1.0)
    whole = [[(at, -float(replica))] for at in inside]
    held = table.held[job]
    present = sum(held)
    builder.row([(at, 1.0) for at, _ in own], lower=1.0, upper=1.0)
    all_of_it = [(at, -float(size)) for at, size in own]
    for kind, capacity in enumerate(table.capacity):
        most = capacity if kind in table.suitable[job] else held[kind]
        if not most:
            continue
        (share,) = builder.variables(1, upper=float(most), integer=False)
        shares[kind].append((share, 1.0))
        places = [place for place, kinds in enumerate(table.options.get(job, ())) if kind in kinds]
        if replica:
            for place in places:
                whole[place].append((share, 1.0))
        elif places:
            builder.row([(share, 1.0), *((inside[place], -float(most)) for place in places)], upper=0.0)
        all_of_it.append((share, 1.0))
        if held[kind]:
            stays = [(at, -float(held[kind])) for at, size in own if size >= present]
            builder.row([(share, 1.0), *stays], lower=0.0)
        if present and most > held[kind]:
            grows = [(at, -float(most - held[kind])) for at, size in own if size > present]
            builder.row([(share, 1.0), *grows], upper=float(held[kind]))
    builder.row(all_of_it, lower=0.0, upper=0.0)
    if replica:
        for terms in whole:
            builder.row(terms, lower=0.0, upper=0.0)


def read_groups(
    per_job: Sequence[ScaleValues], table: KindTable, solution: Floats, counts: Sequence[int]
) -> dict[int, list[int]]:
    """How many nodes each job that must be in groups has in each of them, in their order.

    Args:
        per_job: The jobs.
        table: What the model was made of.
        counts: Nodes of each job by the solution.
    """
    first, nodes = sum(len(scales.useful()) for scales in per_job), dict[int, list[int]]()
    for job, groups in table.options.items():
        own = solution[first : first + len(groups)]
        if replica := table.replicas.get(job, 0):
            nodes[job] = [replica * int(count) for count in np.rint(own)]
        else:
            nodes[job] = [0] * len(groups)
            nodes[job][int(np.argmax(own))] = counts[job]
        first += len(groups)
    return nodes
