"""The files that JobManager, a supervisor and its trainer share."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from malletrain.common import job_folder
from malletrain.common.accounts import Account, acting_as
from malletrain.common.files import is_full, make_private_folder, open_plain, write_atomically
from malletrain.common.processes import ProcessId
from malletrain.job_manager.stimuli import Completion, Outcome

_LONGEST_SOCKET_PATH_BYTES = 99
_RECORDED = ("job_id", "incarnation", "slots_per_node")
_LARGEST_LAUNCH_BYTES = 4 << 20
"""More than the largest command and environment that the kernel takes."""
_LARGEST_FILE_BYTES = 64 << 10
_LONGEST_MESSAGE = 4096
_LARGEST_PID = 1 << 22
_MOST_METRICS = 1000
_LONGEST_NAME = 200
_MOST_SAMPLES = 1 << 63
_FILE_MODE = 0o600
_NO_EMPTY_FOLDER = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENOTEMPTY, errno.EEXIST})


class SupervisorStartError(Exception):
    """A job's supervisor can't be started; the message is for people."""


class NoRoomError(SupervisorStartError):
    """There is no room on a disk, or in a quota, for what a supervisor is started with; there may be later."""


@dataclass(frozen=True)
class JobFolder:
    """The folder of one job. What is in it may come from the job itself: it is read as its owner, and with limits.

    Attributes:
        path: Its path.
        account: Whose it is; None: ours.
        record: Where JobManager itself keeps what it has launched, if the folder is not its own.
    """

    path: Path
    account: Account | None = None
    record: Path | None = None

    @property
    def supervisor_log(self) -> Path:
        """Output of the supervisor."""
        return self.path / job_folder.SUPERVISOR_LOG

    @property
    def logs(self) -> Path:
        """Folder of the workers' logs, `NODE.LOCAL_RANK.log`."""
        return self.path / job_folder.LOGS_FOLDER

    def entered(self) -> AbstractContextManager[None]:
        """Have this thread access files as the owner of the folder. Nothing may be awaited inside.

        Raises:
            AccountError: this process may not.
        """
        return acting_as(self.account)

    @property
    def is_done(self) -> bool:
        """Whether the trainer has said that it is done."""
        with self.entered():
            try:
                (self.path / job_folder.COMPLETION_FILE).lstat()
            except OSError:
                return False
        return True

    @property
    def is_launched(self) -> bool:
        """Whether a supervisor has been started here."""
        return self.launched() is not None

    @property
    def has_failed_for_room(self) -> bool:
        """Whether a supervisor could neither serve nor say why, and the disk is full."""
        return self.supervisor() is None and self.outcome() is None and is_full(self.path)

    def prepare(self) -> None:
        """Make the folders, which others can't enter, and remove the files of an earlier supervisor.

        Raises:
            SupervisorStartError: the folder is somebody else's.
            OSError: they can't be made.
        """
        if self.account is None:
            make_private_folder(self.path.parent)
            make_private_folder(self.path)
        else:
            _make_folder_of(self.path, self.account)
        with self.entered():
            self.logs.mkdir(mode=0o700, exist_ok=True)
            (self.path / job_folder.CHECKPOINTS_FOLDER).mkdir(mode=0o700, exist_ok=True)
            for name in (job_folder.SUPERVISOR_FILE, job_folder.OUTCOME_FILE, job_folder.LAUNCH_FILE):
                (self.path / name).unlink(missing_ok=True)
        if self.record is not None:
            self.record.unlink(missing_ok=True)

    def prepare_feeds(self, first: str) -> Path:
        """Make the folder in which the feeds of the job's fleet find each other, in that of the first member.

        Args:
            first: Identifier of the first member.

        Raises:
            SupervisorStartError: the folder is somebody else's.
            OSError: it can't be made.
        """
        above = self.path.with_name(first)
        if self.account is None:
            make_private_folder(above)
        else:
            _make_folder_of(above, self.account)
        with self.entered():
            make_private_folder(above / job_folder.FEEDS_FOLDER)
        return above / job_folder.FEEDS_FOLDER

    def write_launch(self, content: dict[str, Any]) -> None:
        """Write `launch.json`, completely or not at all."""
        with self.entered():
            write_atomically(self.path / job_folder.LAUNCH_FILE, json.dumps(content, indent=1), mode=_FILE_MODE)
        if self.record is not None:
            make_private_folder(self.record.parent)
            own = {name: content[name] for name in _RECORDED}
            write_atomically(self.record, json.dumps(own), mode=_FILE_MODE)

    def write_secret(self, name: str, text: str) -> None:
        """Write a file that only the owner can read, completely or not at all.

        Raises:
            OSError: it can't be written.
            AccountError: this process may not act as the owner.
        """
        with self.entered():
            write_atomically(self.path / name, text, mode=0o600, sync=False)

    def launched(self) -> dict[str, Any] | None:
        """What was launched: content of `launch.json`, or that of the record; None if nothing was."""
        if self.record is None:
            return self._read(job_folder.LAUNCH_FILE, _LARGEST_LAUNCH_BYTES)
        try:
            found: dict[str, Any] = json.loads(self.record.read_text(encoding="ascii"))
        except FileNotFoundError:
            return None
        return found

    def supervisor(self) -> ProcessId | None:
        """The newest supervisor that has served, alive or not; None if there was none."""
        content = self._read(job_folder.SUPERVISOR_FILE) or {}
        pid, start_time = content.get("pid"), content.get("start_time")
        if not isinstance(pid, int) or not isinstance(start_time, int) or not 0 < pid <= _LARGEST_PID:
            return None
        return ProcessId(pid, start_time, None if self.account is None else self.account.user_id)

    def outcome(self) -> tuple[Outcome, str] | None:
        """How the workers ended, and why, as the supervisor wrote when it ended; None if it did not."""
        content = self._read(job_folder.OUTCOME_FILE)
        if content is None or content.get("outcome") not in Outcome.__members__.values():
            return None
        return Outcome(content["outcome"]), clean_text(str(content.get("message", ""))[:_LONGEST_MESSAGE])

    def completion(self) -> Completion | None:
        """What the trainer said when it was done; None if it was not.

        The existence of the file means that it is done, whatever the file contains.
        """
        if not self.is_done:
            return None
        content = self._read(job_folder.COMPLETION_FILE)
        if content is None:
            return Completion()
        samples, metrics = content.get("samples"), content.get("metrics")
        return Completion(
            samples=samples if isinstance(samples, int) and 0 <= samples < _MOST_SAMPLES else None,
            metrics=_numbers(metrics) if isinstance(metrics, dict) else {},
        )

    def remove_own_files(self) -> None:
        """Delete what MalleTrain has written here: logs, files that processes of the job shared, compiled code.

        Checkpoints stay, and so does whatever the job has placed here. The folder goes if nothing is left in it. Links
        are not followed: what they lead to stays. May be repeated.

        Raises:
            OSError: something can't be deleted.
        """
        with self.entered(), _unless_missing_or_filled(), _folder_at(self.path) as folder:
            _remove_files(folder, job_folder.OWN_FILES)
            for name, suffix in job_folder.OWN_FOLDERS.items():
                with _unless_missing_or_filled(), _folder_at(name, folder) as inner, os.scandir(inner) as entries:
                    _remove_files(inner, [entry.name for entry in entries if _is_own(entry, suffix)])
                _remove_if_empty(name, folder)
            with _unless_missing_or_filled(), _folder_at(job_folder.COMPILED_FOLDER, folder):
                shutil.rmtree(job_folder.COMPILED_FOLDER, dir_fd=folder)
            _remove_if_empty(job_folder.CHECKPOINTS_FOLDER, folder)
        _remove_if_empty(self.path)

    def _read(self, name: str, most_bytes: int = _LARGEST_FILE_BYTES) -> dict[str, Any] | None:
        """A JSON object from a file; None if there is no such file or it contains something else."""
        try:
            with self.entered(), open_plain(self.path / name) as file:
                text = file.read(most_bytes + 1)
            content = json.loads(text) if len(text) <= most_bytes else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            # A user who leaves something else there must not be able to fill our log: this is asked 20 times a second.
            structlog.get_logger(__name__).debug("unreadable file", path=str(self.path / name), error=str(error))
            return None
        return content if isinstance(content, dict) else None


@contextlib.contextmanager
def _folder_at(path: Path | str, above: int | None = None) -> Iterator[int]:
    """A descriptor of a folder that is no link, for as long as the context lasts."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _remove_files(folder: int, names: Iterable[str]) -> None:
    for name in names:
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(name, dir_fd=folder)


def _is_own(entry: os.DirEntry[str], suffix: str) -> bool:
    return entry.name.endswith(suffix) and entry.is_file(follow_symlinks=False)


def _remove_if_empty(name: Path | str, above: int | None = None) -> None:
    with _unless_missing_or_filled():
        os.rmdir(name, dir_fd=above)


@contextlib.contextmanager
def _unless_missing_or_filled() -> Iterator[None]:
    """Go on where there is no folder, a link in its place, or a folder in which something is left."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_EMPTY_FOLDER:
            raise


def _make_folder_of(path: Path, account: Account) -> None:
    """Make a job's folder and give it to its owner. The folder above is root's, so nobody can interfere."""
    path.mkdir(mode=0o700, exist_ok=True)
    if path.lstat().st_uid == 0:
        os.chown(path, account.user_id, account.group_id, follow_symlinks=False)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != account.user_id:
        raise SupervisorStartError(f"{path}: expected a folder of the job's owner, {account.name}")
    with acting_as(account):
        path.chmod(0o700)


def launch_record(state_dir: Path, job_id: str) -> Path:
    """Where JobManager itself keeps what it has launched for a job that does not run as its own account."""
    return state_dir / "launched" / f"{job_id}.json"


def socket_path(state_dir: Path, job_id: str, incarnation: int, account: Account | None = None) -> Path:
    """A path for a supervisor's Unix socket that is short enough for the kernel. Its folder is made.

    Args:
        state_dir: State folder of the installation.
        job_id: The job.
        incarnation: Which of its supervisors.
        account: As whom the supervisor runs; None: as we do.

    Raises:
        SupervisorStartError: the folder belongs to another user.
        OSError: it can't be made.
    """
    name = f"{job_id}.{incarnation}.sock"
    mark = hashlib.sha256(os.fsencode(state_dir)).hexdigest()[:12]
    if account is not None:
        above = Path(tempfile.gettempdir()) / f"malletrain-{os.getuid()}-{mark}"
        _make_own_folder(above, 0o711)
        _make_folder_of(above / name, account)
        return above / name / "s"
    path = state_dir / "run" / name
    if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH_BYTES:
        path = Path(tempfile.gettempdir()) / f"malletrain-{os.getuid()}-{mark}" / name
    _make_own_folder(path.parent, 0o700)
    return path


def open_socket(path: Path, account: Account) -> int:
    """A descriptor that stands for a supervisor's socket and for nothing else: root must not be led to another one.

    Raises:
        OSError: there is none, or what is there is not a socket of the account.
    """
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    if stat.S_ISSOCK(found.st_mode) and found.st_uid == account.user_id:
        return descriptor
    os.close(descriptor)
    raise OSError(errno.ENOTSOCK, f"not a socket of {account.name}", str(path))


def remove_socket(path: Path, account: Account | None = None) -> None:
    """Remove what `socket_path` has made room for, once the supervisor has ended.

    Raises:
        OSError: it can't be removed.
    """
    with acting_as(account):
        path.unlink(missing_ok=True)
    if account is not None:
        with contextlib.suppress(FileNotFoundError, OSError):  # its owner may have put more there
            path.parent.rmdir()


def _make_own_folder(path: Path, mode: int) -> None:
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise SupervisorStartError(f"{path}: expected a folder of this user")
    path.chmod(mode)


def clean_text(text: str) -> str:
    """A text with a replacement for what can't be encoded: a job may have written anything."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    numbers = {name: value for name, value in metrics.items() if isinstance(value, float) or _is_small(value)}
    kept = itertools.islice(numbers.items(), _MOST_METRICS)
    return {clean_text(name[:_LONGEST_NAME]): float(value) for name, value in kept}


def _is_small(value: object) -> bool:
    return isinstance(value, int) and abs(value) < _MOST_SAMPLES
