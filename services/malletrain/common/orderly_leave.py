"""Has the processes of a command end in order: those that save first, so that a wrapper does not end before what it has
started.

A command may be a shell that runs a trainer, a pipe into `tee`, or a launcher with workers. Those that save are mostly
the innermost, and the outer ones wait for them. So the trainer is asked first, and the others when it has ended. What a
trainer itself has started, such as data loaders, is left to it.

Known by what can be seen of them: parents, command lines, pipes, and whether they have a handler for SIGTERM. One
without a handler has nothing to save; of two processes that might be the trainer, the one with a handler is.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from malletrain.common.processes import (
    ProcessId,
    ProcessStatus,
    identify,
    process_ids,
    read_arguments,
    read_caught_signals,
    read_name,
    read_status,
)
from malletrain.common.python_command import is_interpreter, parse_python_command

_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "busybox", "fish", "csh", "tcsh"})
_LAUNCHERS = frozenset(
    {
        *("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "accelerate.commands.launch"),
        *("deepspeed", "deepspeed.launcher.launch", "composer", "fabric", "horovodrun", "mpirun", "mpiexec"),
        *("mpiexec.hydra", "hydra_pmi_proxy", "orterun", "orted", "prterun", "prte", "prted", "srun", "conda", "uv"),
    }
)
"""Programs and modules that start trainers. Many have handlers for SIGTERM, and pass it on with limits of their own."""
_HELPER_MODULES = ("multiprocessing.spawn", "multiprocessing.forkserver", "multiprocessing.popen_")
_TRACKERS = ("multiprocessing.resource_tracker", "multiprocessing.semaphore_tracker")
_OURS = ("malletrain.client.sidecar", "malletrain.client.feeding")
_LOADER = "pt_data_worker"
"""What torch calls a process of a DataLoader. It has a handler, which tells its trainer of a failure."""


@dataclass(frozen=True)
class Member:
    """A live process of a command.

    Attributes:
        pid: Process id.
        parent: Process id of its parent.
        name: What the kernel calls it.
        arguments: Its command line.
        catches: Whether it has a handler for SIGTERM.
        reads: Pipe that is its standard input; empty: it is none, or it can't be seen.
        writes: Pipes that are its standard output or error.
    """

    pid: int
    parent: int
    name: str = ""
    arguments: tuple[str, ...] = ()
    catches: bool = False
    reads: str = ""
    writes: frozenset[str] = frozenset()

    @property
    def is_python(self) -> bool:
        """Whether an interpreter of Python runs it."""
        return is_interpreter(self.arguments[0]) if self.arguments else is_interpreter(self.name)

    @property
    def is_shell(self) -> bool:
        """Whether it is a shell."""
        program = PurePath(self.arguments[0]).name.lstrip("-") if self.arguments else self.name
        return program in _SHELLS

    @property
    def is_launcher(self) -> bool:
        """Whether it is known to start trainers rather than to be one."""
        python = parse_python_command(self.arguments)
        program = python.target if python else next(iter(self.arguments), self.name)
        return PurePath(program).name in _LAUNCHERS

    @property
    def is_ours(self) -> bool:
        """Whether it belongs to the client, and ends by itself with its trainer."""
        return any(module in word for module in _OURS for word in self.arguments)

    def helps(self, parent: Member) -> bool:
        """Whether it is a part of its parent's program, such as a data loader, and is left to that.

        Ranks that a program has started by multiprocessing look like data loaders. They have handlers if they save.
        """
        if self.is_ours or any(tracker in word for tracker in _TRACKERS for word in self.arguments):
            return True
        part = self.is_python and (
            self.arguments == parent.arguments
            or any(module in word for module in _HELPER_MODULES for word in self.arguments)
        )
        return part and (parent.catches or not self.catches or self.name == _LOADER)


def first_to_leave(root: int, members: Iterable[Member]) -> tuple[int, ...]:
    """Process ids of those that are asked to end first.

    Args:
        root: Process id of the command itself.
        members: The processes of the command, the root among them. Those whose parent is no member count as children
            of the root.
    """
    by_pid = {member.pid: member for member in members}
    if root not in by_pid:
        return tuple(pid for pid, member in by_pid.items() if not member.is_ours)
    children: dict[int, list[Member]] = {}
    for member in by_pid.values():
        if member.pid != root:
            children.setdefault(member.parent if member.parent in by_pid else root, []).append(member)
    return tuple(member.pid for member in _innermost(by_pid[root], children))


def _innermost(member: Member, children: Mapping[int, list[Member]]) -> tuple[Member, ...]:
    """The processes, among one and its descendants, that are asked first to end."""
    own = [child for child in children.get(member.pid, ()) if not child.helps(member)]
    inner = _sources(tuple(process for child in own for process in _innermost(child, children)))
    savers = tuple(process for process in inner if process.catches)
    if member.is_launcher or (member.is_shell and not member.catches):
        chosen = savers or inner
    elif member.is_shell:
        chosen = savers
    elif member.catches:
        chosen = () if member.is_python else tuple(process for process in savers if process.is_python)
    elif member.is_python:
        chosen = tuple(process for process in savers if process.is_python)
    else:
        chosen = savers or inner
    return chosen or (member,)


def _sources(members: tuple[Member, ...]) -> tuple[Member, ...]:
    """The processes that read no output of the others: `tee` ends with the trainer that it reads."""
    written = frozenset(pipe for member in members for pipe in member.writes if pipe)
    return tuple(member for member in members if member.reads not in written) or members


_REST_SECONDS = 5.0
"""How long a wrapper has at most for its own last lines, once the trainer has ended."""
_LATE_SECONDS = 2.0
_LATE_SHARE = 0.25
"""So long before the end, and at most this share of the grace, whoever has a handler is asked though others save."""


class OrderlyLeave:
    """One command that was asked to end.

    The trainer gets SIGTERM at once. When it has ended, the others have half of the time that is left, and at most 5 s,
    to end by themselves, and get SIGTERM then. Shortly before the end of the grace, those with a handler get it in any
    case, but for launchers. Who kills what is left is not decided here.
    """

    def __init__(self, root: int, now: float, grace: float, user_id: int | None = None) -> None:
        """Asks the processes that are to end first; `advance` asks the others when they are due.

        Args:
            root: Process id of the command, which is also that of its process group.
            now: Monotonic seconds.
            grace: Seconds until it is killed.
            user_id: Whose processes they must be; None: anybody's that may be signalled.
        """
        self._root = root
        self._user_id = user_id
        self._asked = set[ProcessId]()
        self._rest_at: float | None = None
        self._asked_late = self._asked_all = False
        self._begun = now
        self._end = self._late_at = float("inf")
        self.shorten(now + grace)
        members = read_members(root)
        chosen = set(first_to_leave(root, members))
        self._ask(member for member in members if member.pid in chosen)
        self._first = frozenset(self._asked)

    def shorten(self, end: float) -> None:
        """Kill it at this time, unless it would be killed earlier."""
        if end < self._end:
            self._end = end
            self._late_at = end - min(_LATE_SECONDS, _LATE_SHARE * (end - self._begun))

    def advance(self, now: float) -> None:
        """Ask whoever is due. Cheap; call it often."""
        if self._asked_all:
            return
        if self._rest_at is None and not any(process.alive() for process in self._first):
            self._rest_at = now + min(_REST_SECONDS, max(0.0, self._end - now) / 2)
        if self._rest_at is not None and now >= self._rest_at:
            self._asked_all = True
            self._ask(read_members(self._root))
        elif now >= self._late_at and not self._asked_late:
            self._asked_late = True
            # A launcher would pass it on to ranks that have been asked already, and may be saving.
            self._ask(member for member in read_members(self._root) if member.catches and not member.is_launcher)

    def _ask(self, members: Iterable[Member]) -> None:
        for member in members:
            process = identify(member.pid)
            if process is None or process in self._asked or member.is_ours:
                continue
            self._asked.add(replace(process, user_id=self._user_id))
            with contextlib.suppress(PermissionError):
                replace(process, user_id=self._user_id).kill(signal.SIGTERM)


def read_members(root: int) -> list[Member]:
    """The live processes of a command: those of its process group, and the descendants of its first process."""
    statuses = {pid: status for pid in process_ids() if (status := read_status(pid)) is not None and not status.ended}
    return [_read(pid, statuses[pid]) for pid in _pids_of(root, statuses)]


def _pids_of(root: int, statuses: dict[int, ProcessStatus]) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, status in statuses.items():
        children.setdefault(status.parent, []).append(pid)
    pids = dict.fromkeys(pid for pid, status in statuses.items() if pid == root or status.group == root)
    open_pids = list(pids)
    while open_pids:
        for pid in children.get(open_pids.pop(), ()):
            if pid not in pids:
                pids[pid] = None
                open_pids.append(pid)
    return list(pids)


def _read(pid: int, status: ProcessStatus) -> Member:
    return Member(
        pid,
        status.parent,
        read_name(pid),
        tuple(read_arguments(pid)),
        signal.SIGTERM in read_caught_signals(pid),
        _pipe(pid, 0),
        frozenset(filter(None, (_pipe(pid, 1), _pipe(pid, 2)))),
    )


def _pipe(pid: int, descriptor: int) -> str:
    try:
        target = str(Path(f"/proc/{pid}/fd/{descriptor}").readlink())
    except OSError:  # it has ended, has closed it, or is another user's
        return ""
    return target if target.startswith("pipe:") else ""
