"""A cgroup for each supervisor and all that it starts, on this machine: it ends with the supervisor.

It is ours, so that nothing gets out of it. In it is one that is the job's, in which the supervisor makes one for each
virtual node: whoever tampers with these keeps processes on a node that the job gives up, and they end with the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Callable, Collection
from functools import cached_property
from pathlib import Path

import structlog

from malletrain.common.accounts import Account
from malletrain.common.cgroups import PROCESSES_FILE, Cgroup, Cgroups, group_name, open_cgroups
from malletrain.common.user_threads import UserBusyError, UserThreads

_PAUSE_SECONDS = 0.002
_PATIENCE_SECONDS = 2.0
_SEPARATOR = "."
_OF_THE_JOB = "own"
_LIMITS = {"cgroup.max.descendants": "512", "cgroup.max.depth": "2"}
"""Of what its owner can make in it; GPUs of virtual nodes that one job has on this machine."""

Open = Callable[[str, Callable[[str], None]], Cgroups]


def folder_name(jobs: Path) -> str:
    """Name of the folder of an installation's cgroups.

    Args:
        jobs: Folder of the jobs' folders, which no other installation has.
    """
    return f"malletrain-{hashlib.sha256(str(jobs).encode(errors='surrogateescape')).hexdigest()[:16]}"


class JobCgroups:
    """Cgroups of one installation's jobs. No method fails: processes can also be found by their environment."""

    def __init__(self, jobs: Path, open_below: Open = open_cgroups) -> None:
        """
        Args:
            jobs: Folder of the jobs' folders.
            open_below: Opens cgroups in a folder of a name.
        """
        self._name = folder_name(jobs)
        self._open_below = open_below
        self._threads = UserThreads()
        self._log = structlog.get_logger(__name__)

    @cached_property
    def _groups(self) -> Cgroups:
        groups = self._open_below(self._name, self._log.warning)
        details = {"folder": str(groups.folder)} if groups.folder is not None else {"reason": groups.reason}
        self._log.info("cgroups of jobs" if groups.folder is not None else "jobs have no cgroups", **details)
        return groups

    def make(self, job_id: str, incarnation: int, account: Account | None) -> Cgroup | None:
        """The cgroup that a supervisor joins at its start; None where there can't be one.

        Args:
            job_id: Job identifier.
            incarnation: Which of its supervisors.
            account: As whom the job runs; None: as we do.
        """
        outer = self._groups.make(group_name(job_id, incarnation))
        if outer is None:
            return None
        inner = Cgroup(outer.folder / _OF_THE_JOB)
        try:
            for name, limit in _LIMITS.items():
                outer.write(name, limit)
            inner.folder.mkdir(exist_ok=True)
            if account is not None:
                for path in (inner.folder, inner.folder / PROCESSES_FILE):
                    os.chown(path, account.user_id, account.group_id)
        except OSError as error:
            self._groups.complain(error)
            return None
        return inner

    async def end(self, job_id: str, incarnation: int, recorded: object = "") -> None:
        """End all that is in the cgroup of a supervisor, which has ended or is to end, and remove it.

        Args:
            job_id: Job identifier.
            incarnation: Which of its supervisors.
            recorded: The cgroup that it has joined, by the record of the launch: an earlier JobManager may have been
                in another cgroup itself. The record may be the job's own file, and name anything.
        """
        name = group_name(job_id, incarnation)
        for group in self._candidates(name, recorded):
            await self._end(group)

    async def end_others(self, supervised: Callable[[], Collection[str]]) -> None:
        """End all that is in cgroups of jobs that are not supervised.

        Args:
            supervised: Returns the identifiers of those that are, as they change.
        """
        for name in self._groups.names():
            if name.rpartition(_SEPARATOR)[0] not in supervised() and (group := self._groups.find(name)) is not None:
                await self._end(group)

    def close(self) -> None:
        """Remove the folder, if no job has a cgroup."""
        if self._groups.folder is not None:
            with contextlib.suppress(OSError):
                self._groups.folder.rmdir()

    def _candidates(self, name: str, recorded: object) -> list[Cgroup]:
        present = self._groups.find(name)
        groups = [] if present is None else [present]
        if isinstance(recorded, str) and recorded and self._groups.folder is not None:
            path = Path(recorded).parent
            # Whoever wrote the record, nothing but a cgroup of this job can be meant.
            is_ours = path.is_absolute() and path.name == name and path.parent.name == self._name
            if is_ours and ".." not in path.parts and path.parent != self._groups.folder and path.is_dir():
                groups.append(Cgroup(path))
        return groups

    async def _end(self, group: Cgroup) -> None:
        try:
            killed = group.kill()
            deadline = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
            while (occupied := group.has_processes) and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(_PAUSE_SECONDS)
        except OSError as error:
            self._groups.complain(error)
            return
        if killed or occupied:
            self._log.info("cgroup ended", cgroup=str(group.folder), all_ended=not occupied)
        with contextlib.suppress(UserBusyError):  # its owner may have made hundreds in it
            await self._threads.run(group.folder.name, group.remove)
        if self._groups.folder != group.folder.parent:
            with contextlib.suppress(OSError):
                group.folder.parent.rmdir()
