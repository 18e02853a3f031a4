"""Starts a process in a session of its own, as this process or as a user."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from malletrain.common.accounts import Account, acting_as
from malletrain.common.cgroups import Cgroup
from malletrain.common.child_process import ChildProcess, find_program, spawn
from malletrain.common.files import open_log

_DROP_PRIVILEGES = Path(__file__).with_name("drop_privileges.py")
_ENTER_FOLDER = Path(__file__).with_name("enter_folder.py")
_UMASK = 0o077


def start_process(
    command: Sequence[str],
    folder: str | Path,
    environment: Mapping[str, str],
    log: Path,
    *,
    pass_fds: Collection[int] = (),
    account: Account | None = None,
    group: Cgroup | None = None,
) -> ChildProcess:
    """Start a process in a session of its own.

    Args:
        command: Program and arguments.
        folder: Working directory.
        environment: The whole environment.
        log: File to which its output is appended, opened as the account.
        pass_fds: Descriptors that it inherits.
        account: Whose it is; None: ours. A program of a user that can't be started ends with exit status 127, and says
            so in the log.
        group: The cgroup that it joins before it begins, if it can; None: that of this process.

    Raises:
        OSError: the log can't be opened; or it is ours and can't be started.
        AccountError: we may not start anything as the account.
    """
    with acting_as(account):
        output = open_log(log)
    with output:
        if account is None:
            words = _in_folder(command, str(folder), environment)
            process = _start(words, output.fileno(), pass_fds, environment)
            if group is not None:
                join_cgroup(group, process.pid, output.fileno())
            return process
        order = _order(command, str(folder), environment, account, group)
        try:
            drop = [sys.executable, "-I", "-S", str(_DROP_PRIVILEGES), str(order)]
            return _start(drop, output.fileno(), (*pass_fds, order), os.environ)
        finally:
            os.close(order)


def join_cgroup(group: Cgroup, pid: int, output: int) -> None:
    """Have a process that has just begun join a cgroup; what it writes to says if it can't."""
    try:
        group.add(pid)
    except OSError as error:
        os.write(output, f"runs outside of its cgroup: {error}\n".encode(errors="surrogateescape"))


def _in_folder(command: Sequence[str], folder: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """A command line that enters a folder first.

    Raises:
        OSError: program or folder can't be used.
    """
    name = command[0]
    # A relative path is one of that folder, as it is when the folder has been entered.
    program = find_program(str(Path(folder, name)) if "/" in name else name, environment)
    if not os.path.isdir(folder):  # noqa: PTH112 - it may be relative to where this process is, as the program is not
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)
    return (sys.executable, "-I", "-S", str(_ENTER_FOLDER), folder, program, *command[1:])


def _start(
    command: Sequence[str], output: int, pass_fds: Collection[int], environment: Mapping[str, str]
) -> ChildProcess:
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        return spawn(
            command, environment, stdin=null, stdout=output, stderr=output, pass_fds=pass_fds, new_session=True
        )
    finally:
        os.close(null)


def _order(
    command: Sequence[str], folder: str, environment: Mapping[str, str], account: Account, group: Cgroup | None
) -> int:
    """A descriptor of a file in memory with what `drop_privileges` needs: no command line shows the environment."""
    order = {
        "command": list(command),
        "folder": folder,
        "environment": dict(environment),
        "user_id": account.user_id,
        "group_id": account.group_id,
        "groups": list(account.groups),
        "umask": _UMASK,
        "cgroup": "" if group is None else group.processes_file,
    }
    descriptor = os.memfd_create("order", os.MFD_CLOEXEC)
    os.write(descriptor, json.dumps(order).encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
