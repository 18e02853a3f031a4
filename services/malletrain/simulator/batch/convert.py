"""From a job log to a schedule and to the idle-node trace that it leaves."""

from __future__ import annotations

from pathlib import Path

from malletrain.scavenger.idle_trace import Trace
from malletrain.simulator.batch.engine import Overrun, simulate
from malletrain.simulator.batch.idle import Window, idle_trace
from malletrain.simulator.batch.policies import policy_named
from malletrain.simulator.batch.swf import read_log
from malletrain.simulator.batch.workload import Workload, workload_of


def read_workload(
    path: Path,
    *,
    nodes: int | None = None,
    processors_per_node: int | None = None,
    skip_too_large: bool = False,
) -> Workload:
    """The jobs in an SWF file; see `workload_of`.

    Raises:
        InvalidInputError: the file is no SWF, the machine's size is not known, or a job is larger than it.
    """
    return workload_of(
        read_log(path), nodes=nodes, processors_per_node=processors_per_node, skip_too_large=skip_too_large
    )


def idle_trace_of(
    path: Path,
    *,
    policy: str = "easy",
    nodes: int | None = None,
    processors_per_node: int | None = None,
    skip_too_large: bool = False,
    overrun: Overrun = Overrun.KILL,
    window: Window = Window.SUBMITS,
    min_idle_s: float = 0.0,
) -> Trace:
    """The idle nodes that a scheduler would leave with the jobs of an SWF file.

    Args:
        path: The log, plain or gzip.
        policy: `fcfs`, `easy` or `wfp`.
        nodes: Nodes of the machine; None takes the header's MaxNodes, else its MaxProcs by `processors_per_node`.
        processors_per_node: Turns processors into nodes; None takes the header's ratio, else 1.
        skip_too_large: Leave out jobs larger than the machine rather than refuse them.
        overrun: What happens to jobs that compute for longer than their estimate.
        window: Where the trace ends; it begins at the first submission.
        min_idle_s: Leave out fragments that are shorter, seconds.

    Raises:
        InvalidInputError: the file or an argument can't be used; names file and line, or the argument.
    """
    chosen = policy_named(policy)
    workload = read_workload(path, nodes=nodes, processors_per_node=processors_per_node, skip_too_large=skip_too_large)
    return idle_trace(simulate(workload, chosen, overrun=overrun), window=window, min_idle_s=min_idle_s)
