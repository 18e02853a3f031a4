"""The files that JobManager, a supervisor and its trainer share."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import re
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
from malletrain.common.files import is_full, make_private_folder, make_state_folder, open_plain, write_atomically
from malletrain.common.launch_file import Launch, launch_document
from malletrain.common.processes import ProcessId
from malletrain.common.untrusted_json import JsonBounds, UntrustedJsonError, integer_of, parse_object
from malletrain.job_manager.launching.removing import MAX_ENTRIES, TooManyEntriesError, remove_folder
from malletrain.job_manager.machine.stimuli import Completion, Outcome, WorkerFailure

_MAX_SOCKET_PATH_BYTES = 99
_RECORDED = ("job_id", "incarnation", "slots_per_node", "instance_id", "cgroup")
"""What JobManager needs of a launch later."""
_MAX_LAUNCH_BYTES = 4 << 20
"""More than the largest command and environment that the kernel takes."""
_MAX_FILE_BYTES = 64 << 10
_DEEPEST = 8
_MAX_ENTRIES = 200_000
"""Of the longest command and environment; of shorter files there is no room for as many."""
_MAX_MESSAGE_LENGTH = 4096
_MAX_PID = 1 << 22
_LATEST_START = 1 << 63
_MAX_METRICS = 1000
_MAX_NAME_LENGTH = 200
_MAX_SAMPLES = 1 << 63
_MAX_SCALE = 1_000_000
_MAX_LINES = 20
_MAX_LINE_LENGTH = 500
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_FILE_MODE = 0o600
_NO_EMPTY_FOLDER = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENOTEMPTY, errno.EEXIST})


class SupervisorStartError(Exception):
    """A job's supervisor can't be started; the message is for people."""


class StartPostponedError(SupervisorStartError):
    """A supervisor can't be started now, and not by a fault of its job: it is tried again."""


class NoRoomError(StartPostponedError):
    """There is no room on a disk, or in a quota, for what a supervisor is started with; there may be later."""


@dataclass(frozen=True)
class WrittenOutcome:
    """What a supervisor wrote at its end.

    Attributes:
        outcome: How the workers ended.
        message: Why, for people.
        failure: The failure that ended them; None: none did, or it is not known.
        log: The last lines of the log of the worker that failed first, as "n017 | text".
    """

    outcome: Outcome
    message: str
    failure: WorkerFailure | None = None
    log: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobFolder:
    """The folder of one job. What is in it may come from the job itself: it is read as its owner, and with limits.

    Attributes:
        account: Whose it is; None: ours.
        record: Where JobManager itself keeps what it has launched, if the folder is not its own.
        instance_id: Random identifier of the job; empty: it has none.
        fault: Why it is not the folder of this job, so that nothing in it is believed or changed; empty: it is.
    """

    path: Path
    account: Account | None = None
    record: Path | None = None
    instance_id: str = ""
    fault: str = ""

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
            PermissionError: it is not the folder of this job.
        """
        if self.fault:
            raise PermissionError(errno.EPERM, self.fault)
        return acting_as(self.account)

    @property
    def is_done(self) -> bool:
        """Whether the trainer has said that it is done."""
        if self.fault:
            return False
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
            SupervisorStartError: the folder is somebody else's, or that of another job.
            OSError: they can't be made.
        """
        if self.fault:
            raise SupervisorStartError(f"{self.fault}: nothing is started in it")
        if self.account is None:
            make_private_folder(self.path.parent)
            make_private_folder(self.path)
        else:
            _make_folder_of(self.path, self.account)
        with self.entered():
            self._write_identifier()
            self.logs.mkdir(mode=0o700, exist_ok=True)
            (self.path / job_folder.CHECKPOINTS_FOLDER).mkdir(mode=0o700, exist_ok=True)
            for name in (job_folder.SUPERVISOR_FILE, job_folder.OUTCOME_FILE, job_folder.LAUNCH_FILE):
                (self.path / name).unlink(missing_ok=True)
        if self.record is not None:
            self.record.unlink(missing_ok=True)

    def _write_identifier(self) -> None:
        path = self.path / job_folder.INSTANCE_FILE
        if self.instance_id and not path.exists():
            write_atomically(path, self.instance_id + "\n", mode=_FILE_MODE)

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

    def write_launch(self, launch: Launch) -> None:
        """Write `launch.json`, completely or not at all."""
        content = launch_document(launch)
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

    def launch_version(self) -> tuple[int, int, int] | None:
        """Another value after each launch; None if nothing was launched, or nothing here is believed."""
        if self.fault:
            return None
        try:
            if self.record is not None:
                status = self.record.lstat()  # in a folder that the owner can't enter
            else:
                with self.entered():
                    status = (self.path / job_folder.LAUNCH_FILE).lstat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def launched(self) -> dict[str, Any] | None:
        """What was launched: content of `launch.json`, or that of the record; None if nothing was."""
        if self.fault:
            return None
        if self.record is None:
            content = self._read(job_folder.LAUNCH_FILE, _MAX_LAUNCH_BYTES)
        else:
            try:
                content = json.loads(self.record.read_text(encoding="ascii"))
            except FileNotFoundError:
                return None
        if content is not None and self.instance_id and content.get("instance_id", "") not in ("", self.instance_id):
            return None  # of another job with the same number
        return content

    def supervisor(self) -> ProcessId | None:
        """The newest supervisor that has served, alive or not; None if there was none."""
        content = self._read(job_folder.SUPERVISOR_FILE) or {}
        try:
            pid = integer_of(content, "pid", 1, _MAX_PID)
            start_time = integer_of(content, "start_time", 0, _LATEST_START)
        except UntrustedJsonError:
            return None
        return ProcessId(pid, start_time, None if self.account is None else self.account.user_id)

    def outcome(self) -> WrittenOutcome | None:
        """How the workers ended, and why, as the supervisor wrote when it ended; None if it did not."""
        content = self._read(job_folder.OUTCOME_FILE)
        if content is None or content.get("outcome") not in Outcome.__members__.values():
            return None
        message = clean_text(str(content.get("message", ""))[:_MAX_MESSAGE_LENGTH])
        failure = content.get("failure")
        if not isinstance(failure, dict):
            return WrittenOutcome(Outcome(content["outcome"]), message)
        return WrittenOutcome(Outcome(content["outcome"]), message, _failure(failure), _failure_log(failure))

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
            samples=samples if isinstance(samples, int) and 0 <= samples < _MAX_SAMPLES else None,
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
            for name, suffixes in job_folder.OWN_FOLDERS.items():
                with _unless_missing_or_filled(), _folder_at(name, folder) as inner, os.scandir(inner) as entries:
                    looked_at = list(itertools.islice(entries, MAX_ENTRIES))
                    _remove_files(inner, [entry.name for entry in looked_at if _is_own(entry, suffixes)])
                    if len(looked_at) == MAX_ENTRIES:
                        raise TooManyEntriesError(errno.EFBIG, "more files than are deleted at a time", name)
                _remove_if_empty(name, folder)
            with _unless_missing_or_filled(), _folder_at(job_folder.COMPILED_FOLDER, folder):
                remove_folder(job_folder.COMPILED_FOLDER, folder)
            _remove_if_empty(job_folder.CHECKPOINTS_FOLDER, folder)
            if os.listdir(folder) == [job_folder.INSTANCE_FILE]:  # noqa: PTH208 - of a descriptor; else it says whose the rest is
                _remove_files(folder, [job_folder.INSTANCE_FILE])
        _remove_if_empty(self.path)

    def _read(self, name: str, max_bytes: int = _MAX_FILE_BYTES) -> dict[str, Any] | None:
        """A JSON object from a file; None if there is no such file or it contains something else."""
        try:
            with self.entered(), open_plain(self.path / name) as file:
                text = file.read(max_bytes + 1)
            return parse_object(text, JsonBounds(max_bytes, _DEEPEST, _MAX_ENTRIES))
        except FileNotFoundError:
            return None
        except (OSError, UntrustedJsonError) as error:
            # A user who leaves something else there must not be able to fill our log: this is asked 20 times a second.
            structlog.get_logger(__name__).debug("unreadable file", path=str(self.path / name), error=str(error))
            return None


class KnownLaunches:
    """What jobs' present supervisors were started with. A file is read again only after the next launch.

    A launch on a thousand nodes is 100 KB of JSON, and each command of its job asks for it.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {}

    def __len__(self) -> int:
        """The number of jobs of which something is kept."""
        return len(self._known)

    def of(self, folder: JobFolder, incarnation: int) -> dict[str, Any]:
        """What an incarnation was started with, as far as JobManager needs it; empty if it was not started."""
        version, job_id = folder.launch_version(), folder.path.name
        if version is None:
            return {}
        known = self._known.get(job_id)
        if known is None or known[0] != version:
            content = folder.launched() or {}
            known = self._known[job_id] = version, {name: content[name] for name in _RECORDED if name in content}
        return known[1] if known[1].get("incarnation") == incarnation else {}

    def forget(self, job_id: str) -> None:
        """Keep nothing of a job that has no supervisor any more."""
        self._known.pop(job_id, None)


def _failure(content: dict[str, Any]) -> WorkerFailure | None:
    """The failure that a supervisor names; None where a field makes no sense."""
    scale, count, seconds, node = (content.get(name) for name in ("scale", "count", "seconds", "host"))
    if not isinstance(scale, int) or not isinstance(count, int) or not isinstance(seconds, int | float):
        return None
    if not isinstance(node, str) or not (0 <= scale <= _MAX_SCALE and 0 < count <= _MAX_SCALE):
        return None
    by_script = content.get("by_script") is True
    return WorkerFailure(clean_text(node[:_MAX_NAME_LENGTH]), by_script, scale, max(0.0, float(seconds)), count)


def _failure_log(content: dict[str, Any]) -> tuple[str, ...]:
    lines, node = content.get("log"), content.get("host")
    if not isinstance(lines, list) or not isinstance(node, str):
        return ()
    return tuple(clean_text(f"{node} | {str(line)[:_MAX_LINE_LENGTH]}") for line in lines[-_MAX_LINES:])


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


def _is_own(entry: os.DirEntry[str], suffixes: tuple[str, ...]) -> bool:
    return entry.name.endswith(suffixes) and entry.is_file(follow_symlinks=False)


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
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != account.user_id:
        raise SupervisorStartError(f"{path}: expected a folder of the job's owner, {account.name}")
    with acting_as(account):
        path.chmod(0o700)


def launch_record(state_dir: Path, job_id: str) -> Path:
    """JobManager's own record of what it has launched for a job that does not run as its account."""
    return state_dir / "launched" / f"{job_id}.json"


def socket_path(state_dir: Path, job_id: str, incarnation: int, account: Account | None = None) -> Path:
    """A path for a supervisor's Unix socket that is short enough for the kernel. Its folder is made.

    Args:
        state_dir: State folder of the installation.
        job_id: The job.
        incarnation: Which of its supervisors.
        account: As whom the supervisor runs; None: as we do.

    Raises:
        StartPostponedError: it can't be made, which is no fault of the job.
    """
    name = f"{job_id}.{incarnation}.sock"
    try:
        return _socket_path(state_dir, name, account)
    except (OSError, SupervisorStartError) as error:
        raise StartPostponedError(f"there is no folder for its supervisor's socket ({error})") from error


def _socket_path(state_dir: Path, name: str, account: Account | None) -> Path:
    path, earlier = state_dir / "run" / name, earlier_socket_folder(state_dir)
    if account is None and len(os.fsencode(path)) <= _MAX_SOCKET_PATH_BYTES:
        make_private_folder(path.parent)
        return path
    was_there = is_own_folder(earlier) and os.path.lexists(earlier / name)
    above = earlier if was_there else socket_folder(state_dir, 0o700 if account is None else 0o711)
    if account is None:
        return above / name
    _make_folder_of(above / name, account)
    return above / name / "s"


def open_socket(path: Path, account: Account) -> int:
    """A descriptor that stands for a supervisor's socket and for nothing else: root must not be led to another one.

    Raises:
        OSError: there is none, or what is there is not a socket of the account.
    """
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if stat.S_ISSOCK(status.st_mode) and status.st_uid == account.user_id:
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


def clean_text(text: str) -> str:
    """A text without what can't be encoded, and what a terminal would act upon: a job may have written anything."""
    return _CONTROL.sub(" ", text.encode("utf-8", "replace").decode("utf-8"))


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    numbers = {name: value for name, value in metrics.items() if isinstance(value, float) or _is_small(value)}
    first = itertools.islice(numbers.items(), _MAX_METRICS)
    return {clean_text(name[:_MAX_NAME_LENGTH]): float(value) for name, value in first}


def _is_small(value: object) -> bool:
    return isinstance(value, int) and abs(value) < _MAX_SAMPLES


RUN_FOLDER = Path("/run")
_RECORDS = {0o700: "sockets.path", 0o711: "sockets-of-owners.path"}
_PREFIX = "malletrain-"


def socket_folder(state_dir: Path, mode: int) -> Path:
    """The folder for supervisors' sockets, outside of the state folder, whose path may be too long or closed to owners.

    A name that can be foreseen could be taken by anybody in a folder such as /tmp. So it has a random name, which is
    kept in the state folder; where it is not there any more, or is somebody else's, another one is made.

    Args:
        state_dir: State folder of the installation, which nobody else can enter.
        mode: Permissions of the folder: 0o700, or 0o711 where owners of jobs must pass through.

    Raises:
        OSError: it can't be made.
    """
    record = state_dir / _RECORDS[mode]
    try:
        known = Path(record.read_text(encoding="utf-8"))
    except (FileNotFoundError, UnicodeDecodeError):
        known = None
    if known is not None and is_own_folder(known):
        known.chmod(mode)
        return known
    made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_above()))
    made.chmod(mode)
    make_state_folder(state_dir)
    write_atomically(record, str(made), mode=0o600)
    return made


def earlier_socket_folder(state_dir: Path) -> Path:
    """Folder of sockets of earlier versions, whose supervisors serve there until they end."""
    mark = hashlib.sha256(os.fsencode(state_dir)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"{_PREFIX}{os.getuid()}-{mark}"


def is_own_folder(path: Path) -> bool:
    """Whether a path is that of a folder of this user, and no link."""
    try:
        status = path.lstat()
    except (OSError, ValueError):
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _above() -> Path:
    """Root's own folder where there is one: some systems clear /tmp of what has not been used for days."""
    return RUN_FOLDER if os.getuid() == 0 and os.access(RUN_FOLDER, os.W_OK) else Path(tempfile.gettempdir())
