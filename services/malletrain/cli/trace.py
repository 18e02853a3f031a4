"""`malletrain trace`: files of idle fragments."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated

import typer

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.generate import generate as draw
from malletrain.scavenger.generate import write_trace

trace_app = typer.Typer(help="Files of idle fragments.", no_args_is_help=True)

_HOUR_S = 3600.0


@trace_app.callback()
def _trace() -> None:
    """Files of idle fragments."""


@trace_app.command()
def generate(
    out: Annotated[Path, typer.Option(help="Where to: NAME.csv or NAME.csv.gz; NAME.json is written beside it.")],
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes.")] = 1024,
    hours: Annotated[float, typer.Option(help="Length of the trace in hours, above 0.")] = 24.0,
    idle_fraction: Annotated[
        float, typer.Option(help="Expected share of idle time, above 0 and below 1; about 0.08 on Summit.")
    ] = 0.08,
    seed: Annotated[int, typer.Option(help="The same seed gives the same trace.")] = 0,
) -> None:
    """Draw a trace with the fragment statistics of Summit."""
    if not hours > 0:
        raise InvalidInputError("--hours", "above 0", hours)
    if not 0 < idle_fraction < 1:
        raise InvalidInputError("--idle-fraction", "above 0 and below 1", idle_fraction)
    trace = draw(nodes, hours * _HOUR_S, idle_fraction, random.Random(seed))
    if not trace.fragments:
        raise InvalidInputError("--hours", "so many that at least one node is idle at any time", hours)
    try:
        write_trace(trace, out)
    except OSError as error:
        raise InvalidInputError("--out", f"a file that can be written ({error})", str(out)) from error
    idle_hours = sum(fragment.length_s for fragment in trace.fragments) / _HOUR_S
    share = idle_hours / (nodes * hours)
    typer.echo(f"{out}: {len(trace.fragments)} idle fragments, {idle_hours:.1f} node-hours ({share:.1%} idle)")
