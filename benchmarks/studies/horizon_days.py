"""What the benchmarks of T_fwd replay: days of parts of the Summit log's nodes, with the built-in job sets."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from malletrain.allocator.problem.forward_time import ForwardPolicy
from malletrain.scavenger.idle_trace import Trace, window
from malletrain.scavenger.trace_files import read_trace
from malletrain.simulator.replay.evaluation import Scenario

_SHARED = Path(os.environ.get("MALLETRAIN_SHARED", Path(__file__).parents[3] / "shared"))
_LOG = _SHARED / "traces" / "summit-2021-02-week1.csv.gz"
DAY_S = 86_400.0
CONSTANTS = (30, 60, 120, 240, 480, 960)
POLICIES = (ForwardPolicy.SURVIVAL, ForwardPolicy.EXPECTED)
STALLS = (0.25, 1.0, 4.0)
SETS = {"hpo": "ShuffleNet", "imagenet": "seven networks"}
ROWS = tuple((name, factor) for name in SETS for factor in STALLS)
"""Job sets and factors of their stalls."""
SLICE_NODES = 1024


def summit_log() -> Trace:
    """The first week of the Summit log; ends the program where it is missing."""
    if not _LOG.exists():
        sys.exit(f"error: {_LOG}: expected the Summit log (MALLETRAIN_SHARED names its folder)")
    return read_trace(_LOG)


class Slice:
    """Some nodes of the log. What has been cut from it is kept."""

    def __init__(self, trace: Trace, number: int, nodes: int = SLICE_NODES) -> None:
        """Take nodes: the first 1024 of the log are slice 1, the next 1024 slice 2, and so on.

        Args:
            trace: The log.
            number: Which slice, from 1.
            nodes: How many nodes of it.
        """
        begin = (number - 1) * SLICE_NODES
        self._trace = window(trace, 0.0, trace.duration_s, trace.nodes[begin : begin + nodes])
        self._known: dict[tuple[float, float], Scenario] = {}

    def scenario(self, begin_s: float, seconds: float) -> Scenario:
        """An excerpt to replay by itself."""
        key = begin_s, seconds
        if key not in self._known:
            self._known[key] = Scenario.of(window(self._trace, begin_s, seconds), seconds)
        return self._known[key]
