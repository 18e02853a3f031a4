"""The program by which root starts a process of a user: it becomes the user for good, then the user's program.

    python -I -S drop_privileges.py FD

FD is a file with a JSON object: `command`, `folder`, `environment`, `user_id`, `group_id`, `groups`, `umask`. It is run
by its path, with root's own environment: the user's, which may name libraries to load, is only in the file. Everything
that has to do with the user, entering the folder included, happens as the user.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

_PR_SET_NO_NEW_PRIVS = 38
_NOT_STARTED = 127
"""Exit status of a program that could not be started, as of a shell."""


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
        become(order["user_id"], order["group_id"], order["groups"])
        os.umask(order["umask"])
        os.chdir(order["folder"])
        os.execvpe(order["command"][0], order["command"], order["environment"])
    except (OSError, ValueError) as error:
        print(f"can't start {order['command'][0]} as user id {order['user_id']}: {error}", file=sys.stderr)
        sys.exit(_NOT_STARTED)


if __name__ == "__main__":
    main()
