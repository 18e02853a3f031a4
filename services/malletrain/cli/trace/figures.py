"""Figures of traces. Matplotlib is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.columns import Seconds

_DPI = 120


def new_figure(columns: int, option: str) -> tuple[Any, Sequence[Any]]:
    """A figure with axes side by side.

    Args:
        columns: How many axes.
        option: What asked for it, for the error.

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
    """Write a PNG; the same figure gives the same bytes.

    Raises:
        OSError: the file can't be written.
    """
    with path.open("wb") as file:
        figure.savefig(file, format="png", dpi=_DPI, metadata={"Software": None})


def draw_distribution(path: Path, lengths: Seconds, by_number: Seconds, by_time: Seconds, option: str) -> None:
    """BFTrainer's Fig. 1: how many fragments are at most so long, and how much of the node-time they hold."""
    figure, (axes,) = new_figure(1, option)
    axes.step(lengths, by_number, where="post", label="fragments")
    axes.step(lengths, by_time, where="post", label="node-time", linestyle="--")
    axes.set(xscale="log", xlabel="fragment length (s)", ylabel="cumulative share", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend()
    save(figure, path)


def draw_histograms(
    path: Path,
    panels: Sequence[tuple[str, Sequence[str], Sequence[float], Sequence[float]]],
    option: str,
) -> None:
    """MalleTrain's Fig. 11: each panel a title, the bins' names, and the shares in the original and the synthetic."""
    figure, every = new_figure(len(panels), option)
    for axes, (title, bins, original, synthetic) in zip(every, panels, strict=True):
        places = list(range(len(bins)))
        axes.bar([place - 0.2 for place in places], original, 0.4, label="original")
        axes.bar([place + 0.2 for place in places], synthetic, 0.4, label="synthetic")
        axes.set_xticks(places, bins, rotation=45, ha="right")
        axes.set(title=title, ylabel="share")
        axes.legend()
    save(figure, path)
