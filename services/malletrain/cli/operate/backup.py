"""`malletrain backup FILE`: databases and keys of an installation in one archive; `malletrain restore FILE`: back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from malletrain.cli.operate.state_folder import lock_state_folder, prepare_state_folder
from malletrain.cli.shared.configured import ConfigOption
from malletrain.cli.shared.settings import load
from malletrain.runtime.channel import serves
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.errors import InvalidInputError, MalleTrainError
from malletrain.runtime.settings_file import SERVICES, settings_file


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


def restore(
    file: Annotated[Path | None, typer.Argument(help="Archive of `malletrain backup`.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there; it is kept in a folder.")] = False,
    go_on: Annotated[bool, typer.Option("--continue", help="Finish a restore that was interrupted.")] = False,
    config: ConfigOption = None,
) -> None:
    """Restore databases and keys from a backup, while no service runs. Job folders and logs stay as they are."""
    from malletrain.runtime.backup.restoring import finish_restore, restore_backup
    from malletrain.runtime.database.migrating import check_no_restore, restore_is_open

    if (file is None) != go_on:
        raise InvalidInputError("FILE", "an archive of `malletrain backup`, or --continue without one")
    settings = load(config)
    prepare_state_folder(settings)
    with lock_state_folder(settings.state_dir):
        for service in SERVICES:
            if serves(settings.peer(service)):
                raise MalleTrainError(f"{service} runs at {settings.addresses.of(service)}: stop the services first")
        try:
            if file is None:
                if not restore_is_open(settings.state_dir):
                    raise InvalidInputError("--continue", "a restore that was interrupted: there is none")
                replaced = finish_restore(settings)
            else:
                check_no_restore(settings.state_dir)
                manifest, replaced = restore_backup(settings, file, force, SystemClock())
                typer.echo(f"restored the state of {manifest.create_time}: {', '.join(sorted(manifest.revisions))}")
        except OSError as error:
            raise MalleTrainError(f"the restore failed: {error}") from error
    if replaced is not None:
        typer.echo(f"what was there before is in {replaced}")
