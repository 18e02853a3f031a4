"""The one reader of /proc: identity, state and environment of processes, their priority, and signals that hit no other.

A process id is given to another process once its owner has ended and has been reaped. With the start time it is unique.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_MAX_FILE_BYTES = 4 << 20
_MAX_ENVIRONMENT_BYTES = 256 << 10
_MAX_VARIABLES = 4096
"""Twice what a job may have with it. Any user can start hundreds of processes with megabytes each."""
_TICKS = os.sysconf("SC_CLK_TCK")
_ENDED = frozenset("ZXx")
"""States of processes that have ended and wait to be reaped, or are being removed."""


UserTest = Callable[[Mapping[str, str], frozenset[int]], bool]
"""Whether a process with an environment and with user ids can be meant."""


def of_anybody(environment: Mapping[str, str], user_ids: frozenset[int]) -> bool:
    """Any process that has not ended: the `UserTest` of those whose signals the kernel limits anyway."""
    del environment
    return bool(user_ids)


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """Some fields of /proc/PID/stat.

    Attributes:
        state: One letter, e.g. R (running), S (sleeping), T (stopped by a signal), t (stopped by a debugger),
            Z (zombie).
        parent: Process id of the parent.
        start_time: Start time in clock ticks since boot.
        group: Its process group.
    """

    state: str
    parent: int
    start_time: int
    group: int = 0

    @property
    def ended(self) -> bool:
        """Whether the process has ended, even if it has not been reaped yet."""
        return self.state in _ENDED


@dataclass(frozen=True, slots=True)
class ProcessId:
    """Identity of a process.

    Attributes:
        pid: Process id.
        start_time: Start time in clock ticks since boot.
        user_id: The user whose process it must be; None: anybody's. One that is another user's does not count as alive:
            where the numbers come from a user, they may be those of somebody else's process.
    """

    pid: int
    start_time: int
    user_id: int | None = field(default=None, compare=False)

    def alive(self) -> bool:
        """Whether the process runs. A zombie does not."""
        return identify(self.pid) == self and (self.user_id is None or belongs_to(self.pid, self.user_id))

    def kill(self, number: signal.Signals = signal.SIGKILL) -> bool:
        """Send a signal to this process and to no other.

        Returns:
            Whether it was sent; False if the process has ended.

        Raises:
            PermissionError: the process belongs to another user.
        """
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:  # it has ended, or is a thread
            return False
        try:
            # The descriptor stands for one process: if that is this one, the signal can't reach another.
            if not self.alive():
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True


@dataclass(frozen=True)
class FoundProcess:
    """A live process and the environment that it was started with."""

    id: ProcessId
    environment: Mapping[str, str]


def process_ids() -> Iterator[int]:
    """Process ids of all processes, zombies included."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - some ask 25 times a second


def read_status(pid: int) -> ProcessStatus | None:
    """State, parent and start time of a process; None if there is none."""
    stat = _read(pid, "stat")
    if not stat:
        return None
    # The name in parentheses may itself contain spaces and parentheses.
    fields = stat.rpartition(b")")[2].split()
    return ProcessStatus(fields[0].decode(), int(fields[1]), int(fields[19]), int(fields[2]))


def read_cpu_seconds(pid: int) -> float | None:
    """CPU time that a process has used with all its threads, in seconds; None if there is none."""
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS if len(fields) > 12 else None


def identify(pid: int) -> ProcessId | None:
    """Identity of a live process; None if there is none."""
    status = read_status(pid)
    return None if status is None or status.ended else ProcessId(pid, status.start_time)


def this_process() -> ProcessId:
    """Identity of the calling process.

    Raises:
        OSError: /proc is not mounted.
    """
    process = identify(os.getpid())
    if process is None:
        raise FileNotFoundError(f"/proc/{os.getpid()}/stat")
    return process


def read_environment(pid: int) -> dict[str, str]:
    """Environment that a process was started with; empty if it has ended or belongs to another user.

    Of one with more than 256 KiB or 4096 variables, only the first.
    """
    # A forked worker has more room there than it needs.
    text = _read(pid, "environ", _MAX_ENVIRONMENT_BYTES).rstrip(b"\0").decode(errors="surrogateescape")
    return dict(word.split("=", 1) for word in text.split("\0", _MAX_VARIABLES)[:_MAX_VARIABLES] if "=" in word)


def read_text(process: int | str, name: str) -> str:
    """A file of /proc/PID, or of a thread, PID/task/TID; empty if it has ended or may not be looked into."""
    return _read(process, name).decode(errors="replace")


def read_arguments(pid: int) -> list[str]:
    """Program and arguments of a process; empty if it has ended."""
    text = _read(pid, "cmdline").decode(errors="surrogateescape")
    return text.rstrip("\0").split("\0") if text else []


def read_name(pid: int) -> str:
    """What the kernel calls a process: by default the first 15 letters of its program; empty if it has ended."""
    return _read(pid, "comm").decode(errors="surrogateescape").removesuffix("\n")


def read_caught_signals(pid: int) -> frozenset[signal.Signals]:
    """Signals for which a process has a handler of its own; none if it has ended."""
    for line in _read(pid, "status").splitlines():
        if line.startswith(b"SigCgt:"):
            mask = int(line.split()[1], 16)
            return frozenset(number for number in signal.Signals if mask >> (number - 1) & 1)
    return frozenset()


def read_descriptors(pid: int) -> Iterator[tuple[int, str]]:
    """Open file descriptors of a process, each with what it refers to, e.g. `socket:[4711]`.

    None if it has ended or belongs to another user.
    """
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)  # noqa: PTH208 - as above
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return
    for name in names:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just been closed
            yield int(name), os.readlink(f"{folder}/{name}")  # noqa: PTH115 - as above


def read_user_ids(pid: int) -> frozenset[int]:
    """The real, effective, saved and file user ids of a process: usually one; empty if it has ended."""
    for line in _read(pid, "status").splitlines():
        if line.startswith(b"Uid:"):
            return frozenset(map(int, line.split()[1:]))
    return frozenset()


def belongs_to(pid: int, user_id: int) -> bool:
    """Whether a number is that of a process, not of a thread, that is a user's in every respect.

    A program that has changed its user, such as sudo, is not.
    """
    lines = _read(pid, "status").splitlines()
    return f"Tgid:\t{pid}".encode() in lines and read_user_ids(pid) == {user_id}


def may_belong_to(pid: int, user_ids: Collection[int]) -> bool:
    """Whether a process can be one of these users', by a look that no user can make long."""
    try:
        owner = os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116 - as above
    except OSError:
        return False
    # Root's are also those that let nobody look into them, whoever has started them.
    return owner in user_ids or (owner == 0 and not read_user_ids(pid).isdisjoint(user_ids))


def find_processes(
    wanted: Callable[[Mapping[str, str]], bool],
    is_ours: UserTest = of_anybody,
    among: Iterable[int] | None = None,
    user_ids: Collection[int] | None = None,
) -> Iterator[FoundProcess]:
    """Live processes with a wanted environment that we may read, except the calling process.

    Args:
        wanted: Whether a process with this environment is wanted. Anybody can start a process with any environment.
        is_ours: Whether a process with this environment and these user ids can be meant. Root can read all of them.
        among: Process ids that are looked at; None: all.
        user_ids: Users whose processes can be meant: environments of others are not even read. None: all users.
    """

    def environment_of(pid: int) -> dict[str, str] | None:
        environment = read_environment(pid)
        return environment if environment and wanted(environment) else None

    for pid in process_ids() if among is None else among:
        if pid == os.getpid() or (user_ids is not None and not may_belong_to(pid, user_ids)):
            continue
        if environment_of(pid) is None:
            continue
        identity = identify(pid)
        # Asked again: the process that was asked may have ended, and the process id may belong to another one now.
        environment = environment_of(pid)
        if identity is not None and environment is not None and is_ours(environment, read_user_ids(pid)):
            yield FoundProcess(identity, environment)


def kill_processes(
    wanted: Callable[[Mapping[str, str]], bool],
    is_ours: UserTest = of_anybody,
    user_ids: Collection[int] | None = None,
) -> list[ProcessId]:
    """Send SIGKILL once to each process that `find_processes` finds; returns those that were alive."""
    return [process.id for process in find_processes(wanted, is_ours, user_ids=user_ids) if process.id.kill()]


def _read(pid: int | str, name: str, max_bytes: int = _MAX_FILE_BYTES) -> bytes:
    """Content of a file of /proc/PID; empty if the process has ended or belongs to another user.

    What is longer is cut: any user can start a process that claims to have an environment of gigabytes.
    """
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123 - as above
            return file.read(max_bytes)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def lower_priority(pid: int, niceness: int) -> bool:
    """Lower the priority of a process that leads a session, or is about to; never raise it.

    Where the kernel shares the CPU among sessions first (sched_autogroup, see sched(7)), niceness counts only within a
    session, so that the session's own is set, too.

    Returns:
        Whether that is done, or can't be; False: try again later, the process does not lead its session yet.
    """
    try:
        if os.getsid(pid) != pid:
            return False
        niceness = max(niceness, os.getpriority(os.PRIO_PROCESS, pid))
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))
    except BlockingIOError:  # the kernel takes ten of these a second
        return False
    except (ProcessLookupError, FileNotFoundError, PermissionError):
        return True
    return True
