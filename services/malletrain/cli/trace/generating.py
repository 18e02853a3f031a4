"""`malletrain trace generate`: generates synthetic traces."""

from __future__ import annotations

import random
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from malletrain.cli.trace.comparing import compare
from malletrain.cli.trace.files import HOUR_S, save_trace, summary
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.generate import generate as draw
from malletrain.scavenger.idle_trace import Trace
from malletrain.scavenger.trace_files import read_trace
from malletrain.simulator.traces.presets import PRESETS, preset_trace
from malletrain.simulator.traces.synthesize import synthesize

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
