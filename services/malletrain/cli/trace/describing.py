"""`malletrain trace describe`: statistics of a trace."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from malletrain.cli.shared.output import JsonOption, duration, print_json, print_table
from malletrain.cli.trace.files import HOUR_S, draw_distribution
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace, window
from malletrain.scavenger.trace_files import read_trace
from malletrain.simulator.traces.columns import columns_of
from malletrain.simulator.traces.describe import HAZARD_WINDOW_S, Description, observed_lengths
from malletrain.simulator.traces.describe import describe as description_of


def describe(
    file: Annotated[Path, typer.Argument(help="Trace: NAME.csv, NAME.csv.gz or NAME.parquet.")],
    as_json: Annotated[bool, JsonOption] = False,
    nodes: Annotated[int | None, typer.Option(min=1, help="Use only this many nodes.")] = None,
    hours: Annotated[float | None, typer.Option(help="Use only this many hours.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for CSV files and a figure of fragment lengths.")] = None,
) -> None:
    """Print statistics of a trace: how many nodes are idle, how often that changes, how long they stay idle."""
    trace = _excerpt(read_trace(file), nodes, hours)
    description = description_of(trace)
    if out is not None:
        try:
            _write(out, trace, description)
        except OSError as error:
            raise InvalidInputError("--out", f"a folder that can be written ({error})", str(out)) from error
    if as_json:
        print_json(asdict(description))
        return
    print_table(("statistic", "value"), _statistics(description), title=str(file))
    print_table(
        ("fragments shorter than", "share of fragments", "share of node-time"),
        ((duration(point.shorter_than_s), f"{point.fragments:.1%}", f"{point.node_time:.1%}")
         for point in description.fragment_shares),
    )  # fmt: skip
    if description.event_gap_shares:
        print_table(
            ("gaps between events shorter than", "share of gaps"),
            ((duration(point.shorter_than_s), f"{point.gaps:.1%}") for point in description.event_gap_shares),
        )
    print_table(
        ("idle for", "fragments seen", f"gone {HAZARD_WINDOW_S:.0f} s later"),
        ((duration(point.age_s), str(point.fragments), "-" if point.gone is None else f"{point.gone:.1%}")
         for point in description.hazards),
    )  # fmt: skip


def _excerpt(trace: Trace, nodes: int | None, hours: float | None) -> Trace:
    if nodes is not None and nodes > len(trace.nodes):
        raise InvalidInputError("--nodes", f"at most {len(trace.nodes)}, as many as the trace has", nodes)
    longest = trace.duration_s / HOUR_S
    if hours is not None and not 0 < hours <= longest:
        raise InvalidInputError("--hours", f"above 0 and at most {longest:g}, as long as the trace is", hours)
    if nodes is None and hours is None:
        return trace
    excerpt = window(trace, 0.0, trace.duration_s if hours is None else hours * HOUR_S, nodes)
    # An idle period that began before the whole trace also began before the excerpt.
    return replace(excerpt, earliest_s=trace.earliest_s, origin=trace.origin)


def _statistics(description: Description) -> list[tuple[str, str]]:
    rows = [
        ("duration", duration(description.duration_s)),
        ("nodes", str(description.nodes)),
        ("events", f"{description.events} ({description.events / description.duration_s * HOUR_S:.1f} an hour)"),
        ("events in which nodes join", f"{description.join_events} (INC/h {description.inc_per_hour:.1f})"),
        ("events in which nodes leave", f"{description.leave_events} (DEC/h {description.dec_per_hour:.1f})"),
        ("idle ratio", f"{description.idle_ratio:.2%}"),
        ("resource integral", f"{description.resource_integral_node_hours:.1f} node-hours"),
        ("equivalent nodes", f"{description.equivalent_nodes:.2f}"),
        ("fragments", str(description.fragments)),
        ("mean fragment", duration(description.mean_fragment_s)),
        ("median fragment", duration(description.median_fragment_s)),
        (
            "fragments under 10 minutes",
            f"{description.short_fragments:.1%}, with {description.short_node_time:.1%} of node-time",
        ),
    ]
    return rows if description.origin is None else [("begins", description.origin), *rows]


def _write(folder: Path, trace: Trace, description: Description) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lengths, by_number, by_time = _distribution(trace)
    single = [(key, value) for key, value in asdict(description).items() if not isinstance(value, tuple | None)]
    _table(folder / "statistics.csv", ("statistic", "value"), single)
    curve = zip(lengths.tolist(), by_number.tolist(), by_time.tolist(), strict=True)
    _table(folder / "fragment_cdf.csv", ("at_most_s", "fragments", "node_time"), curve)
    gaps = ((point.shorter_than_s, point.gaps) for point in description.event_gap_shares)
    _table(folder / "event_gaps.csv", ("shorter_than_s", "gaps"), gaps)
    hazards = (
        (point.age_s, point.fragments, "" if point.gone is None else point.gone) for point in description.hazards
    )
    _table(folder / "hazards.csv", ("age_s", "fragments", "gone"), hazards)
    draw_distribution(folder / "fragment_cdf.png", lengths, by_number, by_time)


def _distribution(trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct lengths in seconds, and the cumulative shares of fragments and of node-time."""
    every = observed_lengths(trace, columns_of(trace))
    lengths, counts = np.unique(every, return_counts=True)
    by_time = np.cumsum(lengths * counts)
    return lengths, np.cumsum(counts) / max(1, every.size), by_time / by_time[-1:]


def _table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
