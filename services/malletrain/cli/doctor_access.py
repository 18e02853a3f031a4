"""Checks of `malletrain doctor` on identity: the key that signs tokens, and MUNGE."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from malletrain.cli.doctor_checks import Finding, judge
from malletrain.runtime.access.keys import KEY_FILE, keys_folder
from malletrain.runtime.access.munge import find_munge
from malletrain.runtime.access.settings import AccessSettings
from malletrain.runtime.errors import MalleTrainError

_OTHERS = 0o077


def examine_key(state_dir: Path) -> Finding:
    """Whether the key is its owner's alone. It is not read."""
    check, folder = "identity", keys_folder(state_dir)
    if not folder.exists():
        return Finding(check, True, f"the first start makes a key in {folder}")
    wrong = [found for path in (folder, folder / KEY_FILE) if (found := file_fault(path))]
    remedy = f"chmod -R go= {folder}, as the account that runs the services; if others could read the key, delete it"
    return judge(check, not wrong, "; ".join(wrong) or f"the key in {folder} is readable by its owner only", remedy)


def file_fault(path: Path) -> str:
    """What is wrong with a file; empty if nothing is, or it can't be seen by us."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path}: {error.strerror}"
    if found.st_uid != os.geteuid():
        return f"{path} belongs to uid {found.st_uid}"
    return f"{path} has mode {stat.S_IMODE(found.st_mode):o}" if found.st_mode & _OTHERS else ""


def examine_munge(settings: AccessSettings) -> Finding:
    """Whether MUNGE can vouch for users. Only where the settings say so must it."""
    check, must = "MUNGE", settings.munge == "on"
    remedy = "install munge and start munged, or set access.munge to auto or off"
    if settings.munge == "off":
        return Finding(check, True, "off (access.munge): users need tokens from an operator")
    munge = find_munge(settings)
    if munge is None:
        return judge(check, not must, "munge and unmunge are not installed", remedy)
    try:
        user = munge.user_of(munge.make_credential())
    except MalleTrainError as error:
        return judge(check, not must, error, remedy)
    return Finding(check, True, f"vouches for {user}")
