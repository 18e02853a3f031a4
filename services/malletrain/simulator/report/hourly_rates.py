"""What hours of nodes and GPUs are worth. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from malletrain.runtime.errors import InvalidInputError

MAX_RATE, MAX_GPUS_PER_NODE = 1e9, 1024
_CURRENCY = re.compile(r"[A-Za-z][A-Za-z -]{0,15}")


@dataclass(frozen=True)
class HourlyRates:
    """What node-hours are counted in.

    Attributes:
        node_hour: Charge for a node-hour; None: not given.
        gpu_hour: Charge for a GPU-hour, in addition; None: not given.
        gpus_per_node: GPUs of each node; None: not given.
        currency: What charges are in; empty: not given.
    """

    node_hour: float | None = None
    gpu_hour: float | None = None
    gpus_per_node: int | None = None
    currency: str = ""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidInputError: one is not valid; the error names its option.
        """
        for option, rate in (("--rate", self.node_hour), ("--gpu-rate", self.gpu_hour)):
            if rate is not None and not (math.isfinite(rate) and 0 <= rate <= MAX_RATE):
                raise InvalidInputError(option, f"a charge for an hour, 0 to {MAX_RATE:g}", rate)
        if self.gpus_per_node is not None and not 1 <= self.gpus_per_node <= MAX_GPUS_PER_NODE:
            raise InvalidInputError("--gpus-per-node", f"1 to {MAX_GPUS_PER_NODE}", self.gpus_per_node)
        if self.gpu_hour is not None and self.gpus_per_node is None:
            raise InvalidInputError("--gpu-rate", "--gpus-per-node beside it")
        if self.currency and not _CURRENCY.fullmatch(self.currency):
            raise InvalidInputError("--currency", "up to 16 letters, such as EUR", self.currency)
        if self.currency and self.of_node_hour is None:
            raise InvalidInputError("--currency", "--rate or --gpu-rate beside it", self.currency)

    @property
    def of_node_hour(self) -> float | None:
        """Charge for an hour of a node with its GPUs; None: no rate is given."""
        if self.node_hour is None and self.gpu_hour is None:
            return None
        return (self.node_hour or 0.0) + (self.gpu_hour or 0.0) * (self.gpus_per_node or 0)
