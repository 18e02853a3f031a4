"""The program by which root starts a process of a user: it becomes the user for good, then the user's program.

    python -I -S drop_privileges.py FD

FD is a file with a JSON object: `command`, `folder`, `environment`, `user_id`, `group_id`, `groups`, `umask`, and
`cgroup`, the file by which it joins a cgroup while it is still root, or an empty text. It is run by its path, with
root's own environment: the user's, which may name libraries to load, is only in the file. Everything that has to do
with the user, entering the folder included, happens as the user.

What a process has beside its rights goes, too: root's session keyring, in which keys of file systems and of Kerberos
may be, and what raises root's limits above those that init gives to all.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import resource
import sys
from typing import Any

_PR_SET_NO_NEW_PRIVS = 38
_KEYCTL = {"x86_64": 250, "aarch64": 219, "ppc64le": 271, "riscv64": 219}
"""Numbers of the system call keyctl(2), for which the C library has no function."""
_JOIN_SESSION_KEYRING = 1
_NO_KEYRINGS = frozenset({errno.ENOSYS, errno.EPERM, errno.EACCES})
"""What kernels and containers answer that keep processes from keyrings; then there is none to inherit either."""
_LIMITS = ("RLIMIT_CORE", "RLIMIT_MSGQUEUE", "RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_SIGPENDING")
"""Not that of locked memory, which RDMA needs: the batch scheduler sets it as the site wants it for jobs."""
_PRIORITIES = ("RLIMIT_NICE", "RLIMIT_RTPRIO")
"""Which priorities a process may give itself. No user has any of these unless PAM says so."""
_FIRST_PROCESS = 1
_NOT_STARTED = 127
"""Exit status of a program that could not be started, as of a shell."""


def leave_session_keyring() -> None:
    """Have a session keyring of our own, empty, in place of root's.

    Raises:
        OSError: the kernel does not let us, although it has keyrings.
    """
    number = _KEYCTL.get(platform.machine())
    if number is None:
        return
    library = ctypes.CDLL(None, use_errno=True)
    joined = library.syscall(ctypes.c_long(number), ctypes.c_long(_JOIN_SESSION_KEYRING), None)
    if joined < 0 and ctypes.get_errno() not in _NO_KEYRINGS:
        raise OSError(ctypes.get_errno(), "no session keyring of its own")


def lower_limits() -> None:
    """Have no higher limits than those with which this machine's first process, or container, has begun.

    What root has raised for its services, as by systemd's LimitNOFILE, is not for users' jobs. Limits that root has
    lowered stay low.
    """
    for name in (*_LIMITS, *_PRIORITIES):
        try:
            number = getattr(resource, name)
            soft, hard = resource.getrlimit(number)
            most = 0 if name in _PRIORITIES else resource.prlimit(_FIRST_PROCESS, number)[1]
            hard = _smaller(hard, most)
            resource.setrlimit(number, (_smaller(soft, hard), hard))
        except (AttributeError, OSError, ValueError):
            continue  # this system does not have it, or hides its first process


def _smaller(one: int, other: int) -> int:
    limits = [limit for limit in (one, other) if limit != resource.RLIM_INFINITY]
    return min(limits, default=resource.RLIM_INFINITY)


def join_cgroup(processes_file: str) -> None:
    """Join a cgroup, which the user can't leave: its files are root's. The job goes on without it."""
    try:
        descriptor = os.open(processes_file, os.O_WRONLY)
        try:
            os.write(descriptor, b"0")
        finally:
            os.close(descriptor)
    except OSError as error:
        print(f"starts outside of its cgroup: {error}", file=sys.stderr)


def become(user_id: int, group_id: int, groups: list[int]) -> None:
    """Become a user, with no way back.

    Raises:
        OSError: the kernel does not let us.
        RuntimeError: there is a way back.
    """
    if user_id <= 0 or group_id < 0:
        raise RuntimeError(f"user id {user_id}: expected one above 0")
    os.setgroups(groups)
    os.setresgid(group_id, group_id, group_id)
    os.setresuid(user_id, user_id, user_id)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs can't be set")
    try:
        os.setuid(0)
    except PermissionError:
        return
    raise RuntimeError(f"user id {user_id} can become root again")


def main() -> None:
    """Become the user, then the program."""
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        order: dict[str, Any] = json.load(file)
    try:
        lower_limits()
        if order["cgroup"]:
            join_cgroup(order["cgroup"])
        become(order["user_id"], order["group_id"], order["groups"])
        # As the user: the new keyring is the user's own, and counts against the user's quota.
        leave_session_keyring()
        os.umask(order["umask"])
        os.chdir(order["folder"])
        os.execvpe(order["command"][0], order["command"], order["environment"])
    except (OSError, ValueError) as error:
        print(f"can't start {order['command'][0]} as user id {order['user_id']}: {error}", file=sys.stderr)
        sys.exit(_NOT_STARTED)


if __name__ == "__main__":
    main()
