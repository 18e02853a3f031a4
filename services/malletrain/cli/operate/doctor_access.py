"""Checks of `malletrain doctor` on identity: the key that signs tokens, and MUNGE."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from malletrain.cli.operate.doctor_checks import Finding, judge
from malletrain.cli.shared.settings import AllSettings
from malletrain.common.accounts import AccountError
from malletrain.common.cgroups import Cgroups, open_cgroups
from malletrain.job_manager.launching.accounts import check_owner_jobs, users_can_reach
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
    remedy = (
        f"as root: chown -R ACCOUNT: {folder} && chmod -R go= {folder}, where ACCOUNT runs the services, "
        "as which this should be run, too; if others could read the key, delete it"
    )
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


def examine_run_as(settings: AllSettings) -> Finding:
    """Whether jobs can run as the settings say."""
    check, section = "jobs run as", settings.job_manager
    if section.run_as == "service":
        return Finding(check, True, 'the account that runs the services (job_manager.run_as = "service")')
    remedy = "see docs/access.md, Jobs that run as their owners"
    try:
        check_owner_jobs(section, settings.state_dir)
        python = Path(section.trainer_python)
        found = not python.is_absolute() or users_can_reach(python)
    except (MalleTrainError, AccountError) as error:
        return judge(check, False, error, remedy)
    return judge(check, found, f"their owners, in {section.jobs_dir}", f"{python} can't be reached by all users")


def examine_cgroups(open_below: Callable[[str, Callable[[str], None]], Cgroups] = open_cgroups) -> Finding:
    """Whether jobs have cgroups of their own, if this account starts JobManager in this place. They need not."""
    groups = open_below("malletrain-doctor", lambda _: None)
    if groups.folder is None:
        return Finding("cgroups", True, f"jobs have none, processes are looked for in /proc: {groups.reason}")
    return Finding("cgroups", True, f"each job has one of its own below {groups.folder.parent}")


def examine_munge(settings: AccessSettings) -> Finding:
    """Whether MUNGE can vouch for users. Only where the settings say so must it."""
    check, must = "MUNGE", settings.munge == "on"
    remedy = "install munge and start munged, or set access.munge to auto or off"
    if settings.munge == "off":
        return Finding(check, True, "off (access.munge): users need tokens from an operator")
    unused = "" if must else "not used (access.munge = auto): "
    try:
        munge = find_munge(settings)
        if munge is None:
            return judge(check, not must, f"{unused}munge and unmunge are not installed", remedy)
        user = munge.user_of(munge.make_credential())
    except MalleTrainError as error:
        return judge(check, not must, f"{unused}{error}", remedy)
    return Finding(check, True, f"vouches for {user}")
