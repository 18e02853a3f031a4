"""`malletrain trace generate`: generates synthetic traces."""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from malletrain.cli.shared.output import duration, print_table
from malletrain.cli.trace.files import HOUR_S, draw_histograms, save_trace, summary
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.generate import generate as draw
from malletrain.scavenger.idle_trace import Trace
from malletrain.scavenger.trace_files import read_trace
from malletrain.simulator.traces.presets import PRESETS, preset_trace
from malletrain.simulator.traces.synthesize import histogram, ks_distance, renewals_of, synthesize

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
        typer.echo(f"Kolmogorov-Smirnov distance of {title}: {ks_distance(old, new):.4f} ({old.size} and {new.size})")
    if figure is not None and panels:
        try:
            draw_histograms(figure, panels)
        except OSError as error:
            raise InvalidInputError("--figure", f"a file that can be written ({error})", str(figure)) from error


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


_NODES = 1024
_HOURS = 24.0
_PRESET_HOURS = 168.0
_IDLE_FRACTION = 0.08


class PresetName(StrEnum):
    """Machines with published statistics of idle nodes."""

    SUMMIT = "summit"
    POLARIS = "polaris"
    THETA = "theta"
    MIRA = "mira"


def generate(
    out: Annotated[Path, typer.Option(help="Trace to write: NAME.csv, NAME.csv.gz or NAME.parquet; also NAME.json.")],
    like: Annotated[Path | None, typer.Option(help="Trace whose fragments and gaps to reproduce.")] = None,
    preset: Annotated[PresetName | None, typer.Option(help="Machine whose published statistics to reproduce.")] = None,
    nodes: Annotated[
        int | None,
        typer.Option(min=1, help="Number of nodes; default: as the original or the machine, else 1024."),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(help="Length in hours, above 0; default: that of the original, 168 for a preset, else 24."),
    ] = None,
    idle_fraction: Annotated[
        float | None,
        typer.Option(help="Expected share of idle time, above 0 and below 1; default 0.08. Not with a model."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same trace.")] = 0,
    figure: Annotated[Path | None, typer.Option(help="PNG file for both histograms. With --like only.")] = None,
) -> None:
    """Generate a trace: like a given one, like a known machine, or with the fragment statistics of Summit."""
    _check(like, preset, hours, idle_fraction, figure)
    duration_s = None if hours is None else hours * HOUR_S
    about: dict[str, object]
    original: Trace | None = None
    if like is not None:
        original = read_trace(like)
        trace = synthesize(original, np.random.default_rng(seed), nodes, duration_s)
        about = {"source": f"generated like {like.name}, seed {seed}"}
    elif preset is not None:
        machine = PRESETS[preset.value]
        trace = preset_trace(machine, random.Random(seed), nodes, duration_s or _PRESET_HOURS * HOUR_S)
        about = {"source": f"generated like {preset}, seed {seed}", "statistics": machine.source}
    else:
        share = _IDLE_FRACTION if idle_fraction is None else idle_fraction
        trace = draw(nodes or _NODES, duration_s or _HOURS * HOUR_S, share, random.Random(seed))
        about = {"source": f"generated with Summit's fragment statistics, seed {seed}"}
    if not trace.fragments:
        raise InvalidInputError("--hours", "long enough for at least one idle node", hours)
    save_trace(trace, out, about)
    typer.echo(summary(trace, out))
    if original is not None:
        compare(original, trace, figure)
    if preset is not None:
        typer.echo(f"statistics: {PRESETS[preset.value].source}")


def _check(
    like: Path | None, preset: PresetName | None, hours: float | None, idle_fraction: float | None, figure: Path | None
) -> None:
    if like is not None and preset is not None:
        raise InvalidInputError("--preset", "not together with --like")
    if hours is not None and not 0 < hours < float("inf"):
        raise InvalidInputError("--hours", "above 0", hours)
    if idle_fraction is not None:
        if like is not None or preset is not None:
            raise InvalidInputError("--idle-fraction", "not together with --like or --preset, which determine it")
        if not 0 < idle_fraction < 1:
            raise InvalidInputError("--idle-fraction", "above 0 and below 1", idle_fraction)
    if figure is not None:
        if like is None:
            raise InvalidInputError("--figure", "only together with --like, since it shows both traces")
        if figure.suffix != ".png":
            raise InvalidInputError("--figure", "a name that ends in .png", str(figure))
