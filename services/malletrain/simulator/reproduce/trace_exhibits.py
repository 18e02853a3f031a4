"""BFTrainer's exhibits on the trace: Table 1, Fig. 1 and Fig. 6."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from malletrain.scavenger.idle_trace import Trace
from malletrain.simulator.replay.evaluation import Scenario
from malletrain.simulator.replay.node_events import resource_integral
from malletrain.simulator.report.plots import bars, lines
from malletrain.simulator.report.replay_page import slices
from malletrain.simulator.reproduce.exhibits import Exhibit, rounded
from malletrain.simulator.reproduce.published import SHORT_FRAGMENTS, TABLE_1
from malletrain.simulator.traces.describe import Description, describe

_HOUR_S = 3600.0


def trace_exhibits(whole: Trace, scenario: Scenario) -> list[Exhibit]:
    """Table 1 and Fig. 1 of the whole trace, Fig. 6 of the nodes that are replayed."""
    description = describe(whole)
    return [_table_1(description), _figure_1(whole, description), _figure_6(scenario)]


def _table_1(ours: Description) -> Exhibit:
    rows = [("this trace", ours.inc_per_hour, ours.dec_per_hour, ours.idle_ratio, ours.equivalent_nodes)]
    rows += [(system, *figures) for system, figures in TABLE_1.items()]
    return Exhibit(
        "table-1",
        "Table 1: resources that cannot be backfilled",
        ("system", "INC/h", "DEC/h", "ratio", "eq-nodes"),
        rounded(rows),
        f"This trace has {ours.nodes:,} nodes and {ours.duration_s / _HOUR_S:,.0f} hours, with {ours.events:,} events. "
        "The ratio counts all nodes that the log names, some of which are no compute nodes.",
    )


def _figure_1(trace: Trace, ours: Description) -> Exhibit:
    lengths = np.sort([fragment.length_s for fragment in trace.fragments])
    points = np.unique(np.geomspace(10.0, max(20.0, float(lengths[-1])), 60).round())
    below = np.searchsorted(lengths, points, side="left")
    by_number = below / len(lengths)
    by_time = np.concatenate(([0.0], np.cumsum(lengths)))[below] / lengths.sum()
    minutes = (points / 60.0).tolist()
    figure = lines(
        "Fig. 1: fragments shorter than",
        "minutes",
        "share",
        {"of the fragments": (minutes, by_number.tolist()), "of the idle node-time": (minutes, by_time.tolist())},
    )
    figure.axes[0].set_xscale("log")
    return Exhibit(
        "figure-1",
        "Fig. 1: cumulative distribution of fragment length",
        ("shorter than, s", "share of fragments", "share of node-time"),
        rounded(list(zip(points.tolist(), by_number.tolist(), by_time.tolist(), strict=True))),
        f"Under ten minutes: {ours.short_fragments:.1%} of the fragments with {ours.short_node_time:.1%} of the "
        f"node-time (published, two weeks: {SHORT_FRAGMENTS[0]:.0%} and {SHORT_FRAGMENTS[1]:.0%}).",
        figure,
    )


def _figure_6(scenario: Scenario) -> Exhibit:
    edges = slices(scenario.duration_s)
    times = np.asarray([event.time_s for event in scenario.events])
    counts = np.histogram(times, bins=np.asarray(edges))[0]
    offered = idle_node_hours(scenario, edges)
    hours = np.diff(edges) / _HOUR_S
    share = offered / hours / len(scenario.nodes)
    rows = list(zip([edge / _HOUR_S for edge in edges[:-1]], offered / hours, share, counts.tolist(), strict=True))
    figure = bars(
        "Fig. 6: idle nodes every six hours",
        "hours",
        "nodes",
        [f"{edge / _HOUR_S:.0f}" for edge in edges[:-1]],
        {"mean idle nodes": (offered / hours).tolist()},
    )
    return Exhibit(
        "figure-6",
        "Fig. 6: idle nodes over the week",
        ("hour", "mean idle nodes", "share of nodes", "events"),
        rounded([tuple(float(cell) if not isinstance(cell, int) else cell for cell in row) for row in rows]),
        "The paper plots an arbitrarily chosen set of 1024 nodes; ours are the first ones of the log.",
        figure,
    )


def idle_node_hours(scenario: Scenario, edges_s: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Node-hours offered between consecutive edges (Eq. 17), shape (edges - 1,)."""
    until = [
        0.0 if edge == 0 else resource_integral([e for e in scenario.events if e.time_s < edge], edge)
        for edge in edges_s
    ]
    return np.diff(np.asarray(until, dtype=np.float64))
