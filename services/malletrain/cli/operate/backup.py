"""`malletrain backup FILE`: databases and keys of an installation in one archive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from malletrain.cli.shared.configured import ConfigOption
from malletrain.cli.shared.settings import load
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.errors import MalleTrainError
from malletrain.runtime.settings_file import settings_file


def backup(
    file: Annotated[Path, typer.Argument(help="The archive, a new file; or a folder for it.")],
    config: ConfigOption = None,
) -> None:
    """Back up databases, keys and settings, also while the services run. The archive is a secret; no job folders."""
    import sqlite3

    from malletrain.runtime.backup.writing import write_backup

    settings = load(config)
    given = settings_file(config)
    try:
        archive, manifest = write_backup(settings, file, given, SystemClock())
    except (OSError, sqlite3.Error) as error:
        raise MalleTrainError(f"no backup was made: {error}") from error
    typer.echo(f"{archive}: {', '.join(sorted(manifest.revisions))}; keep it as secret as the keys in it")
