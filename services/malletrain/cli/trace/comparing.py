"""Compares a synthetic trace with its original (MalleTrain, Fig. 11)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from malletrain.cli.shared.output import duration, print_table
from malletrain.cli.trace.figures import draw_histograms
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace
from malletrain.simulator.traces.columns import Seconds
from malletrain.simulator.traces.renewals import histogram, ks_distance, renewals_of

_LIMITS_S = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21600.0, 86400.0)
_BINS = (
    f"below {duration(_LIMITS_S[0])}",
    *(f"from {duration(limit)}" for limit in _LIMITS_S),
)
_BAR = 40


def compare(original: Trace, synthetic: Trace, figure: Path | None) -> None:
    """Print histograms of complete idle fragments and gaps, and their Kolmogorov-Smirnov distances.

    Args:
        original: The original trace.
        synthetic: The synthetic trace.
        figure: PNG file to draw the histograms to; None: they are not drawn.

    Raises:
        InvalidInputError: the figure can't be drawn.
    """
    ours, theirs = renewals_of(synthetic), renewals_of(original)
    kinds = (
        ("idle fragments", theirs.fragments.ended(), ours.fragments.ended()),
        ("gaps between a node's fragments", theirs.gaps.ended(), ours.gaps.ended()),
    )
    panels: list[tuple[str, Sequence[str], Sequence[float], Sequence[float]]] = []
    for title, old, new in kinds:
        if not new.size:
            typer.echo(f"{title}: none is complete in such a short trace, nothing to compare")
            continue
        shares = (histogram(old, _LIMITS_S), histogram(new, _LIMITS_S))
        panels.append((title, _BINS, *shares))
        _print(title, *shares)
        typer.echo(f"Kolmogorov-Smirnov distance of {title}: {_distance(old, new)} ({old.size} and {new.size})")
    if figure is not None and panels:
        try:
            draw_histograms(figure, panels, "--figure")
        except OSError as error:
            raise InvalidInputError("--figure", f"a file that can be written ({error})", str(figure)) from error


def _distance(old: Seconds, new: Seconds) -> str:
    return f"{ks_distance(old, new):.4f}"


def _print(title: str, old: tuple[float, ...], new: tuple[float, ...]) -> None:
    most = max(*old, *new)
    print_table(
        (title, "original", "", "synthetic", ""),
        (
            (name, f"{first:.1%}", _bar(first / most), f"{second:.1%}", _bar(second / most))
            for name, first, second in zip(_BINS, old, new, strict=True)
        ),
    )


def _bar(share: float) -> str:
    return "█" * round(share * _BAR)
