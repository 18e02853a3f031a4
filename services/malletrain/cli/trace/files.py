"""Writes traces, describes what was written, and draws figures: Matplotlib is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace
from malletrain.scavenger.trace_files import write_trace
from malletrain.simulator.traces.columns import Seconds

HOUR_S = 3600.0


def save_trace(trace: Trace, out: Path, about: Mapping[str, object] | None = None) -> None:
    """Write a trace to `--out`.

    Raises:
        InvalidInputError: the file can't be written.
    """
    try:
        write_trace(trace, out, about)
    except OSError as error:
        raise InvalidInputError("--out", f"a file that can be written ({error})", str(out)) from error


def summary(trace: Trace, out: Path) -> str:
    """Describe a written trace in one line."""
    idle_hours = sum(fragment.length_s for fragment in trace.fragments) / HOUR_S
    share = idle_hours / (trace.node_s / HOUR_S)
    return f"{out}: {len(trace.fragments)} idle fragments, {idle_hours:.1f} node-hours ({share:.1%} idle)"


_DPI = 120


def new_figure(columns: int, option: str) -> tuple[Any, Sequence[Any]]:
    """Create a figure with axes side by side.

    Raises:
        InvalidInputError: Matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise InvalidInputError(option, "Matplotlib installed, to draw figures (pip install matplotlib)") from error
    figure = Figure(figsize=(6.0 * columns, 4.0), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    return figure, list(axes)


def save(figure: Any, path: Path) -> None:
    """Write a PNG file. The same figure gives the same bytes.

    Raises:
        OSError: the file can't be written.
    """
    with path.open("wb") as file:
        figure.savefig(file, format="png", dpi=_DPI, metadata={"Software": None})


def draw_distribution(path: Path, lengths: Seconds, by_number: Seconds, by_time: Seconds) -> None:
    """Draw the cumulative distribution of fragment lengths, by number and by node-time (BFTrainer, Fig. 1)."""
    figure, (axes,) = new_figure(1, "--out")
    axes.step(lengths, by_number, where="post", label="fragments")
    axes.step(lengths, by_time, where="post", label="node-time", linestyle="--")
    axes.set(xscale="log", xlabel="fragment length (s)", ylabel="cumulative share", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend()
    save(figure, path)


def draw_histograms(path: Path, panels: Sequence[tuple[str, Sequence[str], Sequence[float], Sequence[float]]]) -> None:
    """Draw histograms of an original and a synthetic trace (MalleTrain, Fig. 11).

    Args:
        path: PNG file.
        panels: Title, names of the bins, and shares in the original and in the synthetic trace of each panel.

    Raises:
        InvalidInputError: Matplotlib is missing.
        OSError: the file can't be written.
    """
    figure, every = new_figure(len(panels), "--figure")
    for axes, (title, bins, original, synthetic) in zip(every, panels, strict=True):
        places = list(range(len(bins)))
        axes.bar([place - 0.2 for place in places], original, 0.4, label="original")
        axes.bar([place + 0.2 for place in places], synthetic, 0.4, label="synthetic")
        axes.set_xticks(places, bins, rotation=45, ha="right")
        axes.set(title=title, ylabel="share")
        axes.legend()
    save(figure, path)
