"""Whose folder a job's folder is. Numbers of jobs alone do not say: after a restore they could mean other jobs.

Each job has a random identifier, which JobManager writes into the job's folder before anything else. What is in a
folder is believed only if the folder has the identifier of the job, and belongs to the account that the job runs as.
"""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from malletrain.common import job_folder
from malletrain.common.files import open_plain

_MAX_ID_BYTES = 64
_MADE_BEFORE = frozenset({job_folder.FEEDS_FOLDER})
"""What may be in a folder before its job is first started: members of a fleet use that of the first one."""


@dataclass(frozen=True)
class JobIdentity:
    """What proves that a folder is a job's own.

    Attributes:
        owner: Name of the user who submitted it.
        instance_id: Its random identifier; empty: it was submitted to a version that gave none.
    """

    owner: str
    instance_id: str


def fault_of_owner(path: Path, owner: str | None) -> str:
    """Why a folder is not that of an account; empty if it is, or if there is no such folder.

    Args:
        path: The folder.
        owner: Name of the account; None: that of this process.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return ""
    if not stat.S_ISDIR(status.st_mode):
        return f"{path} is no folder"
    if owner is None:
        same, expected = status.st_uid == os.geteuid(), f"user id {os.geteuid()}"
    else:
        same, expected = _is_account_of(status.st_uid, owner), f"the job's owner, {owner}"
    return "" if same else f"{path} belongs to user id {status.st_uid}, not to {expected}"


def _is_account_of(user_id: int, name: str) -> bool:
    """Whether a number is that of a user. Once the account is gone, so must be the one with the number."""
    try:
        return pwd.getpwnam(name).pw_uid == user_id
    except (KeyError, ValueError):
        pass
    try:
        pwd.getpwuid(user_id)
    except KeyError:
        return user_id != 0
    return False


def fault_of_identifier(path: Path, instance_id: str) -> str:
    """Why a folder is not that of the job with an identifier; empty if it is, or if there is no such folder.

    To be called with the rights of the folder's owner. Jobs of earlier versions have no identifier, and their folders
    are taken as they are. The folder of a job that has one may be without it only while nothing is in it.

    Args:
        path: The folder.
        instance_id: The identifier; empty: the job has none.
    """
    if not instance_id:
        return ""
    try:
        with open_plain(path / job_folder.INSTANCE_FILE) as file:
            content = file.read(_MAX_ID_BYTES).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return _fault_without_identifier(path)
    except OSError as error:
        return f"{path}: {job_folder.INSTANCE_FILE} can't be read ({error.strerror})"
    return "" if content == instance_id else f"{path} is the folder of another job with the same number"


def _fault_without_identifier(path: Path) -> str:
    try:
        names = [entry.name for entry in path.iterdir()]
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path} can't be looked into ({error.strerror})"
    temporary = f".{job_folder.INSTANCE_FILE}."  # of a write that was interrupted
    if all(name in _MADE_BEFORE or name.startswith(temporary) for name in names):
        return ""
    return f"{path} is the folder of a job of an earlier version with the same number"
