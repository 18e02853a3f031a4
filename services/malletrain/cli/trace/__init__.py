"""`malletrain trace`: describes, converts and generates traces of idle nodes."""

from __future__ import annotations

import typer

from malletrain.cli.trace.converting import convert
from malletrain.cli.trace.describing import describe
from malletrain.cli.trace.generating import generate

trace_app = typer.Typer(help="Traces of idle nodes.", no_args_is_help=True)
for command in (describe, convert, generate):
    trace_app.command()(command)
