"""How long a step of a network would take on nodes with accelerators of their own. Pure.

Virtual nodes share the cores of one machine, so that trainings on them would not scale as on a cluster. A step is
therefore paced: never shorter than what its architecture would take at its published size on the nodes described here.
"""

from __future__ import annotations

from dataclasses import dataclass

from examples.nasbench.cost import Cost

_BYTES = 4
# A backward pass computes two gradients, that of the weights and that of the layer's input, where forward computes one
# output.
_PASSES = 3


@dataclass(frozen=True)
class Machine:
    """Nodes that a training might run on.

    Attributes:
        flops: Floating-point operations per second that a node's accelerator really does in convolutions.
        memory_bytes: Bytes per second to and from the accelerator's memory.
        network_bytes: Bytes per second from node to node.
        slowdown: How many times slower all of it is taken to be.
    """

    flops: float
    memory_bytes: float
    network_bytes: float
    slowdown: float = 1.0


@dataclass(frozen=True)
class Pace:
    """Seconds of a step on one worker, and what the exchange in a ring of very many workers adds."""

    step_seconds: float
    exchange_seconds: float

    def rate(self, workers: int, batch_per_worker: int) -> float:
        """Samples per second."""
        return workers * batch_per_worker / paced_seconds(self.step_seconds, self.exchange_seconds, workers)


def pace(cost: Cost, machine: Machine, batch_per_worker: int) -> Pace:
    """How long steps take.

    Args:
        cost: What the network takes.
        machine: What it trains on.
        batch_per_worker: Samples per worker and step.
    """
    arithmetic = 2 * cost.multiply_adds / machine.flops
    traffic = 2 * _BYTES * cost.written / machine.memory_bytes
    exchange = 2 * _BYTES * cost.weights / machine.network_bytes
    return Pace(
        machine.slowdown * _PASSES * batch_per_worker * (arithmetic + traffic),
        machine.slowdown * exchange,
    )


def paced_seconds(step_seconds: float, exchange_seconds: float, workers: int) -> float:
    """Seconds of a step with so many workers: a ring all-reduce sends (n-1)/n of all gradients twice.

    Args:
        step_seconds: On one worker.
        exchange_seconds: What very many workers add.
        workers: Number of workers, at least 1.
    """
    return step_seconds + exchange_seconds * (workers - 1) / workers
