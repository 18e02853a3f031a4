"""`malletrain health`: whether services answer, for what watches over them, such as a container engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from malletrain.runtime.channel import is_serving, open_blocking_channel
from malletrain.runtime.config import SERVICES, Settings, load_settings
from malletrain.runtime.errors import InvalidInputError, MalleTrainError


def health(
    names: Annotated[list[str] | None, typer.Argument(help="Names of services; by default all five.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file; by default ./malletrain.toml if it exists.")] = None,
) -> None:
    """Ask services whether they serve; exit 1 if one does not answer within half a second. Needs no token."""
    settings = load_settings(Settings, config)
    for name in names or SERVICES:
        if name not in SERVICES:
            raise InvalidInputError("NAME", f"one of {', '.join(SERVICES)}", name)
    silent = [name for name in names or SERVICES if not _serves(settings, name)]
    if silent:
        raise MalleTrainError(f"{', '.join(silent)}: no answer")


def _serves(settings: Settings, name: str) -> bool:
    channel = open_blocking_channel(settings.peer(name), None)
    try:
        return is_serving(channel)
    finally:
        channel.close()


def run() -> None:
    """Run this verb alone. It is asked often, and the whole command takes a second of processor time to import."""
    try:
        typer.run(health)
    except MalleTrainError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    run()
