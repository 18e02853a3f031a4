"""Reads what JobManager asks of a supervisor, and checks that this process is whom the launch is for."""

from __future__ import annotations

import os
from pathlib import Path

from malletrain.common.accounts import may_gain_nothing
from malletrain.common.job_folder import LAUNCH_FILE
from malletrain.common.launch_file import Launch, launch_from_document
from malletrain.common.untrusted_json import JsonBounds, parse_object

_BOUNDS = JsonBounds(4 << 20, max_depth=8, max_entries=200_000)
"""More than the longest command and environment that the kernel takes."""


class LaunchError(Exception):
    """The launch file can't be used."""


def read_launch(folder: Path) -> Launch:
    """Read `launch.json` of a job's folder.

    Raises:
        LaunchError: the file is missing, no JSON, or lacks a field.
    """
    path = folder / LAUNCH_FILE
    try:
        with path.open("rb") as file:
            content = file.read(_BOUNDS.max_bytes + 1)
        return launch_from_document(parse_object(content, _BOUNDS))
    except OSError as error:
        raise LaunchError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise LaunchError(f"{path}: expected a launch file, got {error!r}") from error


def check_user(launch: Launch) -> None:
    """Refuse to run a user's program with any other rights than the user's.

    Raises:
        LaunchError: this process is somebody else, or could become somebody else.
    """
    if launch.user_id is None:
        return
    if launch.user_id == 0 or set(os.getresuid()) != {launch.user_id} or not may_gain_nothing():
        raise LaunchError(f"expected to run as user id {launch.user_id} for good, got {os.getresuid()}")
