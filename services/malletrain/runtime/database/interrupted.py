"""A restore that was interrupted: nothing may be done with the databases before it is finished."""

from __future__ import annotations

from pathlib import Path

from malletrain.runtime.errors import MalleTrainError

RESTORE_FOLDER = "restore.new"
"""Folder in the state folder in which a backup is unpacked."""
RESTORE_MARKER = "complete.json"
"""File in it, once all is unpacked and checked."""


def restore_is_open(state_dir: Path) -> bool:
    """Whether a restore has begun to replace what is there."""
    return (state_dir / RESTORE_FOLDER / RESTORE_MARKER).exists()


def check_no_restore(state_dir: Path) -> None:
    """Refuse to go on in the middle of a restore.

    Raises:
        MalleTrainError: there is one.
    """
    if restore_is_open(state_dir):
        raise MalleTrainError(f"a restore of {state_dir} was interrupted: `malletrain restore --continue` finishes it")
