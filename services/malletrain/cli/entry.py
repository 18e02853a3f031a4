"""Entry point of the `malletrain` script. A training environment has the script, but not the packages that it needs."""

from __future__ import annotations

import sys


def run() -> None:
    """Run the command, or print which package is missing."""
    try:
        from malletrain.cli.main import run as run_command
    except ModuleNotFoundError as error:
        sys.exit(f"error: the command needs {error.name}: pip install 'malletrain[head]'")
    run_command()
