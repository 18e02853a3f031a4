"""`malletrain fleet`: ensembles of networks that train as one unit."""

from __future__ import annotations

import typer

from malletrain.cli.fleet.live import status
from malletrain.cli.fleet.planning import compare, plan, simulate
from malletrain.cli.fleet.submitting import submit
from malletrain.cli.shared.configured import with_config

fleet_app = typer.Typer(help="Ensembles of networks that train as one unit.", no_args_is_help=True)
for command in (with_config(submit), with_config(status), with_config(plan), simulate, compare):
    fleet_app.command()(command)
