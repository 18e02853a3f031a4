"""cgroups (version 2) for what we start: whatever begins in one stays in it, and one write to `cgroup.kill` ends all.

They lie below the cgroup of this process, where the system lets us make any: as root, or as an account to which systemd
has delegated that one. Where it does not, and below the cgroups of a batch scheduler, there are none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from malletrain.common.mounts import unescape

PROCESSES_FILE = "cgroup.procs"
_KILL_FILE = "cgroup.kill"
_EVENTS_FILE = "cgroup.events"
_ITSELF = b"0"
_PAUSE_SECONDS = 0.002
_MAX_NAME = 100
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_SCHEDULERS = re.compile(r".*slurmstepd\.scope|slurm(_.*)?|(job|step|task)_[\w.+-]+|pbs(pro.*|_jobs\.service)")
"""Parts of paths of cgroups that Slurm (`slurmstepd.scope/job_7/step_batch`) and PBS's hook make for their jobs."""
_MAX_DEPTH = 4


def parse_mounts(mountinfo: str) -> Iterator[tuple[PurePosixPath, Path]]:
    """Mounts of cgroup2 in the text of /proc/PID/mountinfo: which cgroup is their root, and where they are."""
    for line in mountinfo.splitlines():
        fields, _, kind = line.partition(" - ")
        words = fields.split()
        if kind.split(" ", 1)[0] == "cgroup2" and len(words) > 4:
            yield PurePosixPath(unescape(words[3])), Path(unescape(words[4]))


def parse_membership(text: str) -> PurePosixPath | None:
    """The process's cgroup of version 2, from the text of /proc/PID/cgroup; None if it is in none that can be seen."""
    for line in text.splitlines():
        if line.startswith("0::/"):
            path = PurePosixPath(line.removeprefix("0::"))
            return None if ".." in path.parts or path.name.endswith(" (deleted)") else path
    return None


def find_folder(mountinfo: str, membership: str) -> Path | None:
    """Folder of a process's cgroup.

    Returns:
        None if it is not mounted.
    """
    path = parse_membership(membership)
    for root, mount in parse_mounts(mountinfo):
        if path is not None and path.is_relative_to(root):
            return mount / path.relative_to(root)
    return None


def is_of_batch_scheduler(folder: Path) -> bool:
    """Whether a batch scheduler has made this cgroup for a job of its own.

    Slurm looks for a job's processes in the cgroups that it has made, and not in those below: what is in these would
    stay on the node at the end of the job.
    """
    return any(_SCHEDULERS.fullmatch(part) for part in folder.parts)


def group_name(*words: object) -> str:
    """A name for a cgroup, of bounded length, that is another one for other words."""
    texts = [str(word) for word in words]
    plain = ".".join(texts)
    if len(plain) <= _MAX_NAME and all(_PLAIN.fullmatch(text) for text in texts):
        return plain
    return "x" + hashlib.sha256("\0".join(texts).encode(errors="surrogateescape")).hexdigest()[:32]


@dataclass(frozen=True)
class Cgroup:
    """One cgroup."""

    folder: Path

    @property
    def processes_file(self) -> str:
        """The file to which a process writes 0 to join."""
        return str(self.folder / PROCESSES_FILE)

    def add(self, pid: int) -> None:
        """Have a process join. What it has started before does not.

        Raises:
            OSError: the kernel does not let us, or the process has ended.
        """
        self.write(PROCESSES_FILE, str(pid))

    def write(self, name: str, text: str) -> None:
        """Write one of its files.

        Raises:
            OSError: the kernel does not let us.
        """
        _write(self.folder / name, text.encode())

    @property
    def has_processes(self) -> bool:
        """Whether there are processes in it, or below it; zombies do not count."""
        try:
            return "populated 1" in (self.folder / _EVENTS_FILE).read_text(encoding="ascii")
        except OSError:
            return False  # it has been removed

    def kill(self) -> bool:
        """Kill all that is in it or below it, and whatever that is just starting; whether there was anything.

        Raises:
            OSError: the kernel does not let us.
        """
        if not self.has_processes:
            return False
        with contextlib.suppress(FileNotFoundError):
            self.write(_KILL_FILE, "1")
        return True

    def remove(self) -> None:
        """Remove it and those below it, as far as they are empty."""
        _remove(self.folder, _MAX_DEPTH)

    def end(self, patience_seconds: float) -> bool:
        """Kill all, wait until all have ended, and remove it; whether all have ended in time.

        Raises:
            OSError: the kernel does not let us.
        """
        deadline = time.monotonic() + patience_seconds
        self.kill()
        while (left := self.has_processes) and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)
        self.remove()
        return not left


def join(processes_file: str) -> str:
    """Have the calling process join a cgroup.

    Returns:
        Why it could not; empty if it has.
    """
    try:
        _write(Path(processes_file), _ITSELF)
    except OSError as error:
        return str(error)
    return ""


def _write(path: Path, text: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text)
    finally:
        os.close(descriptor)


def _remove(folder: Path, depth: int) -> None:
    with contextlib.suppress(OSError):
        if depth:
            with os.scandir(folder) as entries:
                below = [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False)]
            for inner in below:
                _remove(inner, depth - 1)
        folder.rmdir()


class Cgroups:
    """The cgroups in one folder, each with a name. No method raises: without cgroups all goes on as it does elsewhere.

    Attributes:
        folder: Where they are; None: there are none.
        reason: Why there are none; empty if there are.
    """

    def __init__(self, folder: Path | None, say: Callable[[str], None], reason: str = "") -> None:
        """
        Args:
            folder: Where they are; it need not exist. None: there are none.
            say: Called with a line of text the first time that something can't be done.
            reason: Why there are none.
        """
        self.folder = folder
        self.reason = reason
        self._say = say
        self._has_complained = False

    def make(self, name: str) -> Cgroup | None:
        """The cgroup of a name, which is made if there is none; None where it can't be."""
        if self.folder is None:
            return None
        group = Cgroup(self.folder / name)
        try:
            group.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self.complain(error)
            return None
        return group

    def find(self, name: str) -> Cgroup | None:
        """The cgroup of a name; None if there is none."""
        cgroup = None if self.folder is None else Cgroup(self.folder / name)
        return cgroup if cgroup is not None and cgroup.folder.is_dir() else None

    def names(self) -> list[str]:
        """Names of those that there are."""
        if self.folder is None:
            return []
        try:
            with os.scandir(self.folder) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError:
            return []

    def end(self, name: str, patience_seconds: float) -> None:
        """End all that is in the cgroup of a name, and remove it."""
        if (group := self.find(name)) is not None:
            try:
                if not group.end(patience_seconds):
                    self._say(f"processes of cgroup {group.folder} were killed and have not ended")
            except OSError as error:
                self.complain(error)

    def kill_all(self) -> None:
        """Kill all that is in any of them, without waiting for the end."""
        if self.folder is not None:
            try:
                Cgroup(self.folder).kill()
            except OSError as error:
                self.complain(error)

    def remove_all(self) -> None:
        """Remove those that are empty, and the folder if nothing is left in it."""
        if self.folder is not None:
            Cgroup(self.folder).remove()

    def complain(self, error: OSError) -> None:
        """Say that something can't be done, once: a job must not fail by it, nor fill a log."""
        if not self._has_complained:
            self._has_complained = True
            self._say(f"cgroups can't be used as expected, processes are looked for in /proc: {error}")


def own_folder() -> Path:
    """Folder of this process's cgroup, below which we can make others, and move what we start.

    Raises:
        OSError: there is none. The text says why.
    """
    folder = find_folder(
        Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"),
        Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="surrogateescape"),
    )
    if folder is None:
        raise OSError("cgroup v2 is not mounted here")
    if is_of_batch_scheduler(folder):
        raise OSError(f"{folder} is the batch scheduler's, which ends what is in it")
    return folder


def open_cgroups(name: str, say: Callable[[str], None], above: Callable[[], Path] = own_folder) -> Cgroups:
    """Cgroups of this process in a folder of their own, which is tried.

    Args:
        name: Name of the folder.
        say: Called with a line of text the first time that something can't be done.
        above: Returns the folder in which that folder is.
    """
    try:
        folder = above()
        tried = folder / name / "try"
        try:
            tried.mkdir(parents=True, exist_ok=True)
            _check_writable(folder / PROCESSES_FILE, tried / PROCESSES_FILE, tried / _KILL_FILE)
        finally:
            for made in (tried, tried.parent):
                with contextlib.suppress(OSError):
                    made.rmdir()
    except OSError as error:
        return Cgroups(None, say, f"{error.filename}: {error.strerror}" if error.filename else str(error))
    return Cgroups(folder / name, say)


def _check_writable(*files: Path) -> None:
    """See whether files can be written, without writing.

    Raises:
        OSError: one can't be, or there is none.
    """
    for file in files:
        os.close(os.open(file, os.O_WRONLY | os.O_CLOEXEC))
