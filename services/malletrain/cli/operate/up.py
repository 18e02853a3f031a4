"""`malletrain up`: runs all services, each in a process, and restarts those that end or hang."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Annotated

import typer

from malletrain.cli.operate.service_forks import ServiceForks
from malletrain.cli.shared.configured import ConfigOption, warn_of_variables


def up(
    config: ConfigOption = None,
    parent: Annotated[
        int | None, typer.Option(hidden=True, help="End when this process is not the parent any more.")
    ] = None,
) -> None:
    """Run the five services until Ctrl-C or SIGTERM, which stops the jobs at a checkpoint; a kill -9 does not."""
    warn_of_variables()
    with closing(ServiceForks()) as forks:
        with suppress(OSError):  # tried again when the services start
            forks.prepare()
        # Not before the program that services are forked from has begun: it imports the same on another processor.
        from malletrain.cli.operate.service_runner import run

        run(config, parent, forks)
