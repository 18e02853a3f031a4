"""BFTrainer's exhibits on the trace: Table 1, Fig. 1 and Fig. 6."""

from __future__ import annotations

import numpy as np

from malletrain.reproduce.bftrainer.published import SHORT_FRAGMENTS, TABLE_1
from malletrain.reproduce.exhibits import Exhibit, rounded
from malletrain.scavenger.idle_trace import Trace
from malletrain.simulator.replay.evaluation import Scenario
from malletrain.simulator.replay.slices import HOUR_S, idle_node_hours, slices_of
from malletrain.simulator.report.axes import Axis, Kind, TimeAxis
from malletrain.simulator.report.plots import bars, lines, time_bars
from malletrain.simulator.traces.describe import SHORT_S, Description, describe


def trace_exhibits(whole: Trace, scenario: Scenario) -> list[Exhibit]:
    """Table 1 and Fig. 1 of the whole trace, Fig. 6 of the nodes that are replayed."""
    description = describe(whole)
    return [_table_1(description), _figure_1(whole, description), _figure_6(whole.origin, scenario)]


def _table_1(ours: Description) -> Exhibit:
    rows = [("this trace", ours.inc_per_hour, ours.dec_per_hour, ours.idle_ratio, ours.equivalent_nodes)]
    rows += [(system, *figures) for system, figures in TABLE_1.items()]
    return Exhibit(
        "table-1",
        "Table 1: resources that cannot be backfilled",
        ("system", "INC/h", "DEC/h", "ratio", "eq-nodes"),
        rounded(rows),
        f"This trace has {ours.nodes:,} nodes and {ours.duration_s / HOUR_S:,.0f} hours, with {ours.events:,} events. "
        "The ratio counts all nodes that the log names, some of which are no compute nodes.",
        bars(
            "Idle share of all node-hours",
            Axis(kind=Kind.SHARE, zero=True),
            [str(row[0]) for row in rows],
            {"idle share": [ours.idle_ratio, *(None for _ in TABLE_1)]},
            published={"idle share": [None, *(figures[2] for figures in TABLE_1.values())]},
        ),
    )


def _figure_1(trace: Trace, ours: Description) -> Exhibit:
    lengths = np.sort([fragment.length_s for fragment in trace.fragments])
    points = np.unique(np.geomspace(10.0, max(20.0, float(lengths[-1])), 60).round())
    below = np.searchsorted(lengths, points, side="left")
    by_number = below / len(lengths)
    by_time = np.concatenate(([0.0], np.cumsum(lengths)))[below] / lengths.sum()
    places = points.tolist()
    figure = lines(
        "Fig. 1: share that is shorter",
        Axis("length of a fragment", Kind.SECONDS, log=True),
        Axis(kind=Kind.SHARE, zero=True),
        {"of the fragments": (places, by_number.tolist()), "of the idle node-time": (places, by_time.tolist())},
        published={
            label: ([SHORT_S], [value])
            for label, value in zip(("of the fragments", "of the idle node-time"), SHORT_FRAGMENTS, strict=True)
        },
    )
    return Exhibit(
        "figure-1",
        "Fig. 1: cumulative distribution of fragment length",
        ("shorter than, s", "share of fragments", "share of node-time"),
        rounded(list(zip(points.tolist(), by_number.tolist(), by_time.tolist(), strict=True))),
        f"Under ten minutes: {ours.short_fragments:.1%} of the fragments with {ours.short_node_time:.1%} of the "
        f"node-time (published, two weeks: {SHORT_FRAGMENTS[0]:.0%} and {SHORT_FRAGMENTS[1]:.0%}).",
        figure,
    )


def _figure_6(origin: str | None, scenario: Scenario) -> Exhibit:
    slices = slices_of(scenario.duration_s)
    edges = slices.edges
    times = np.asarray([event.time_s for event in scenario.events])
    counts = np.histogram(times, bins=edges)[0]
    offered = idle_node_hours(scenario.events, edges)
    hours = slices.lengths / HOUR_S
    share = offered / hours / len(scenario.nodes)
    rows = list(zip((edges[:-1] / HOUR_S).tolist(), offered / hours, share, counts.tolist(), strict=True))
    figure = time_bars(
        f"Fig. 6: mean idle nodes, {slices.words}",
        TimeAxis.of(origin, scenario.duration_s),
        "nodes",
        edges,
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
