"""Whether the account that runs the services can run the interpreters that the settings name."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from malletrain.cli.operate.doctor_checks import Finding, judge
from malletrain.common.accounts import AccountError, account_of
from malletrain.runtime.access.installation import own_user

_SECONDS = 30.0
_OTHERS_ENTER = stat.S_IXOTH


def examine_interpreters(pythons: Mapping[str, str], state_dir: Path) -> Iterator[Finding]:
    """Run each interpreter as the owner of the state folder, where we are root, and otherwise as ourselves.

    Args:
        pythons: By the setting that names it: an interpreter.
        state_dir: The state folder, which belongs to the account of the services; it may not exist yet.
    """
    options, who = _as_owner(state_dir)
    for setting, python in pythons.items():
        yield examine_interpreter(setting, python, options, who)


def examine_interpreter(setting: str, python: str, options: Mapping[str, Any], who: str) -> Finding:
    """Run one.

    Args:
        setting: What names it.
        python: The interpreter.
        options: More arguments of `subprocess.run`: as whom it is run.
        who: The name of that account.
    """
    check = f"Python of {setting}"
    if shutil.which(python) is None and not Path(python).is_symlink() and not _hidden(Path(python)):
        return Finding(check, True, f"{python} is not on this machine; --source SCHEDULER --try runs it on a node")
    try:
        done = subprocess.run(
            [python, "-I", "-c", ""],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
            cwd="/",
            **options,
        )
        said = done.stderr.strip().splitlines()
        fault = (said[-1] if said else f"ended with status {done.returncode}") if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        fault = str(error)
    where = _closed_folder(Path(python))
    remedy = f"let {who} read and enter {where or python}, or install Python where every account can, e.g. below /opt"
    return judge(check, not fault, f"{who} can't run it: {fault}" if fault else f"{who} can run {python}", remedy)


def _as_owner(state_dir: Path) -> tuple[dict[str, Any], str]:
    """Arguments that have a program run as the owner of the state folder, and the owner's name."""
    ourselves: tuple[dict[str, Any], str] = {}, own_user()
    if os.geteuid() != 0:
        return ourselves
    try:
        account = account_of(state_dir.stat().st_uid)
    except (OSError, AccountError):  # there is no such folder yet, or it is root's
        return ourselves
    groups = list(account.groups)
    return {"user": account.user_id, "group": account.group_id, "extra_groups": groups}, account.name


def _hidden(path: Path) -> bool:
    """Whether we can't see if there is such a file."""
    try:
        path.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _closed_folder(python: Path) -> str:
    """The first folder on the way to an interpreter, or to what it links to, that others may not enter."""
    for end in (python, Path(os.path.realpath(python))):
        for folder in reversed(end.parents):
            try:
                if not folder.stat().st_mode & _OTHERS_ENTER:
                    return str(folder)
            except OSError:
                continue
    return ""
