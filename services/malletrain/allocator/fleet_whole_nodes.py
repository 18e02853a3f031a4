"""Members of a fleet as independent jobs of the allocator, on whole nodes (`milp`). Pure."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from malletrain.allocator.choice_table import ChoiceTable, ObjectiveParameters
from malletrain.allocator.knapsack import Floats
from malletrain.allocator.live_fleet import LiveFleet
from malletrain.allocator.objective import ScaleRates
from malletrain.allocator.problem import CostModel

_KEPT = 4096


def whole_node_counts(moment: LiveFleet, nodes: int) -> dict[int, int]:
    """GPUs of the members that train, by their places: those of the nodes with which together they train most.

    Args:
        moment: The fleet.
        nodes: How many nodes there are.
    """
    if nodes < 1:
        return {}
    per_node, rows = moment.gpus_per_node, moment.table.rows
    jobs, currents, first = [], [], 0
    for place, member in enumerate(moment.members):
        held = min(-(-member.held // per_node), nodes - first)
        first += held
        most = max(1, min(member.largest, moment.most_gpus) // per_node)
        rates = _node_rates(rows[place][: moment.most_gpus], per_node, most)
        jobs.append(_scales(rates, nodes, held, moment.stall_s))
        currents.append(held)
    choice = ChoiceTable.of(jobs).choose(currents, nodes, ObjectiveParameters(moment.forward_s, CostModel.STALL))
    return {place: int(count) * per_node for place, count in enumerate(choice.counts) if count}


@lru_cache(_KEPT)
def _node_rates(row: tuple[float, ...], per_node: int, most: int) -> Floats:
    """Samples per second on 0, 1, 2… nodes, up to `most`, from those on 1, 2… GPUs; constant beyond the last."""
    return np.asarray([0.0, *(row[min(nodes * per_node, len(row)) - 1] for nodes in range(1, most + 1))])


def _scales(rates: Floats, nodes: int, held: int, stall_s: float) -> ScaleRates:
    """Scales of a member in a pool of so many nodes."""
    permitted = rates[: nodes + 1]
    return ScaleRates(np.arange(len(permitted)), permitted, rates[: max(nodes, held) + 1], stall_s, stall_s)
