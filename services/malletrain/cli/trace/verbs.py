"""The verbs of `malletrain trace`."""

from __future__ import annotations

import typer

from malletrain.cli.trace.converting import convert
from malletrain.cli.trace.describing import describe
from malletrain.cli.trace.generating import generate

trace_app = typer.Typer(help="Files of idle fragments.", no_args_is_help=True)
for verb in (describe, convert, generate):
    trace_app.command()(verb)
