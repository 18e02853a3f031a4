"""As whom jobs run: `job_manager.run_as`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from malletrain.common import environment as env
from malletrain.common.accounts import (
    Account,
    AccountError,
    account_named,
    account_of,
    acting_as,
)
from malletrain.common.trusted_files import distrust, way_to
from malletrain.job_manager.settings import JobManagerSettings
from malletrain.runtime.errors import InvalidInputError, PreconditionError

_ENTERED_BY_ALL = 0o711
_NOBODY = 65534


class JobAccounts(Protocol):
    """Says as whom a job runs. None stands for the account that runs JobManager."""

    def of_owner(self, owner: str) -> Account | None:
        """The account of a job's owner.

        Raises:
            PreconditionError: nothing can be run as this owner.
        """

    def of_folder(self, folder: Path) -> Account | None:
        """The account whose folder a job's folder is; None, too, where there is no such folder."""

    def may_end(self, environment: Mapping[str, str], user_ids: frozenset[int]) -> bool:
        """Whether a process with this environment, which names a job's folder, and these user ids can be the job's."""

    def users_of(self, folder: Path) -> frozenset[int]:
        """Users whose processes can be those of jobs with folders in this folder."""

    def make_jobs_folder(self, folder: Path) -> None:
        """Make the folder of the jobs' folders.

        Raises:
            OSError: it can't be made.
        """


class CommonAccount:
    """All jobs run as the account that runs JobManager (`run_as = "service"`)."""

    def of_owner(self, owner: str) -> Account | None:
        """None: as the account that runs JobManager."""
        del owner
        return None

    def of_folder(self, folder: Path) -> Account | None:
        """None: as the account that runs JobManager."""
        del folder
        return None

    def may_end(self, environment: Mapping[str, str], user_ids: frozenset[int]) -> bool:
        """True for any process that has a user id: the kernel lets this account end only its own."""
        del environment
        return bool(user_ids)

    def users_of(self, folder: Path) -> frozenset[int]:
        """The user of this process alone."""
        del folder
        return frozenset({os.geteuid()})

    def make_jobs_folder(self, folder: Path) -> None:
        """Make it, for nobody else to enter."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)


@dataclass
class AccountsOfOwners:
    """Each job runs as its owner (`run_as = "owner"`).

    Attributes:
        min_uid: Accounts with smaller numbers run no jobs.
    """

    min_uid: int
    _known: dict[int, Account] = field(default_factory=dict, init=False)

    def of_owner(self, owner: str) -> Account:
        """The owner's account, looked up now.

        Raises:
            PreconditionError: it has none here, it is root, or its number is too small.
        """
        try:
            account = account_named(owner)
        except AccountError as error:
            raise PreconditionError(f"jobs run as their owners (job_manager.run_as): {error}") from error
        if account.user_id < self.min_uid:
            raise PreconditionError(
                f"jobs run as their owners: {owner!r} has the user id {account.user_id}, and "
                f"job_manager.min_uid is {self.min_uid}"
            )
        self._known[account.user_id] = account
        return account

    def of_folder(self, folder: Path) -> Account | None:
        """Whose a folder is. Root makes these folders and gives them away, and nobody else can."""
        try:
            status = folder.lstat()
        except FileNotFoundError:
            return None
        if status.st_uid not in self._known:
            self._known[status.st_uid] = _present_or_former(status.st_uid, status.st_gid)
        return self._known[status.st_uid]

    def may_end(self, environment: Mapping[str, str], user_ids: frozenset[int]) -> bool:
        """Whether they are those of the folder's owner: anybody can start a process that looks like one of a job."""
        try:
            owner = os.lstat(environment[env.JOB_DIR]).st_uid
        except (KeyError, OSError, ValueError):
            return False
        return owner >= self.min_uid and user_ids == {owner}

    def users_of(self, folder: Path) -> frozenset[int]:
        """The owners of the folders in it, which root alone makes."""
        try:
            with os.scandir(folder) as entries:
                owners = {entry.stat(follow_symlinks=False).st_uid for entry in entries}
        except FileNotFoundError:
            return frozenset()
        return frozenset(owner for owner in owners if owner >= self.min_uid)

    def make_jobs_folder(self, folder: Path) -> None:
        """Make it, for all to pass through and for nobody to list."""
        folder.mkdir(mode=_ENTERED_BY_ALL, parents=True, exist_ok=True)
        folder.chmod(_ENTERED_BY_ALL)


def open_accounts(section: JobManagerSettings, state_dir: Path) -> JobAccounts:
    """As whom jobs run, by the settings.

    Args:
        section: JobManager's settings.
        state_dir: State folder of the installation.

    Raises:
        InvalidInputError: jobs can't run as their owners here.
    """
    if section.run_as == "service":
        return CommonAccount()
    jobs_dir = _jobs_dir(section, state_dir)
    accounts = AccountsOfOwners(section.min_uid)
    try:
        accounts.make_jobs_folder(jobs_dir)
    except OSError as error:
        raise InvalidInputError(
            "job_manager.jobs_dir", f"a folder that can be made ({error})", str(jobs_dir)
        ) from error
    check_owner_jobs(section, state_dir)
    return accounts


def check_owner_jobs(section: JobManagerSettings, state_dir: Path) -> None:
    """Check whether this process could run jobs as their owners. Nothing is changed.

    Args:
        section: JobManager's settings.
        state_dir: State folder of the installation.

    Raises:
        InvalidInputError: it could not; the message names the setting.
    """
    jobs_dir = _jobs_dir(section, state_dir)
    try:
        _check_root_owns(jobs_dir)
        with acting_as(_somebody()):
            jobs_dir.lstat()
    except OSError as error:
        expected = f"a folder that every user can pass through ({error})"
        raise InvalidInputError("job_manager.jobs_dir", expected, str(jobs_dir)) from error


def _jobs_dir(section: JobManagerSettings, state_dir: Path) -> Path:
    if os.geteuid() != 0:
        raise InvalidInputError("job_manager.run_as", '"service": JobManager has not been started as root', "owner")
    if section.jobs_dir is None or not section.jobs_dir.is_absolute():
        expected = 'the absolute path of a folder for the folders of jobs, with run_as = "owner"'
        raise InvalidInputError("job_manager.jobs_dir", expected, str(section.jobs_dir or ""))
    if section.jobs_dir.resolve().is_relative_to(state_dir.resolve()):
        message = "a folder outside of state_dir, which nobody else can enter"
        raise InvalidInputError("job_manager.jobs_dir", message, str(section.jobs_dir))
    return section.jobs_dir


def users_can_reach(path: Path) -> bool:
    """Whether an account without any rights can get to a file. Needs root.

    Raises:
        AccountError: this process is not root.
    """
    with acting_as(_somebody()):
        try:
            path.stat()
        except OSError:
            return False
    return True


def _check_root_owns(folder: Path) -> None:
    """Refuse a path on which another user could put a folder of its own in place of ours."""
    if reason := distrust(way_to(folder), frozenset({0})):
        expected = f"it and the folders above it to be root's, and writable by root only: {reason}"
        raise InvalidInputError("job_manager.jobs_dir", expected, str(folder))


def _somebody() -> Account:
    """An account without any rights, to try whether users can pass."""
    return _without_name(_NOBODY, _NOBODY)


def _present_or_former(user_id: int, group_id: int) -> Account:
    try:
        return account_of(user_id)
    except AccountError:
        return _without_name(user_id, group_id)


def _without_name(user_id: int, group_id: int) -> Account:
    return Account(str(user_id), user_id, group_id, (), "/", "/bin/sh")
