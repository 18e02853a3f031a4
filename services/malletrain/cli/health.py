"""`malletrain health`: whether services answer, for what watches over them, such as a container engine.

The compose files of operators name this module, so it stays where it is.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Annotated

import typer

from malletrain.cli.shared.configured import ConfigOption
from malletrain.runtime.channel import serves
from malletrain.runtime.config import Settings, load_settings
from malletrain.runtime.errors import InvalidInputError, MalleTrainError
from malletrain.runtime.settings_file import SERVICES

_PAUSE_SECONDS = 0.1


def health(
    names: Annotated[list[str] | None, typer.Argument(help="Names of services; by default all five.")] = None,
    config: ConfigOption = None,
    seconds: Annotated[float, typer.Option(min=0, help="How long they may take to answer.")] = 5.0,
) -> None:
    """Ask services whether they serve; exit 1 if one does not answer in time. Needs no token."""
    deadline = time.monotonic() + seconds
    settings = load_settings(Settings, config)
    for name in names or SERVICES:
        if name not in SERVICES:
            raise InvalidInputError("NAME", f"one of {', '.join(SERVICES)}", name)
    silent = [name for name in names or SERVICES if not _serves(settings, name, deadline)]
    if silent:
        raise MalleTrainError(f"{', '.join(silent)}: no answer")


def _serves(settings: Settings, name: str, deadline: float) -> bool:
    pause = threading.Event()
    while not (serving := serves(settings.peer(name))) and time.monotonic() < deadline:
        pause.wait(_PAUSE_SECONDS)
    return serving


def run() -> None:
    """Run this verb alone. It is asked often, and the whole command takes a second of processor time to import."""
    try:
        typer.run(health)
    except MalleTrainError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    run()
