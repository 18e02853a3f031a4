"""Accounts of this machine, and acting as one of them, for root, which starts users' processes and reads their files.

Whoever owns a folder can place links in it at any moment. A process of root that opens files there as root can be led
to any file of the machine. Here the kernel checks each access as if the account itself had asked.
"""

from __future__ import annotations

import ctypes
import os
import platform
import pwd
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_PR_GET_NO_NEW_PRIVS = 39
_SETGROUPS = {"x86_64": 116, "aarch64": 159, "ppc64le": 81, "riscv64": 159}
"""System call numbers. The function of the C library changes the groups of all threads at once."""
_CAPABILITY_VERSION = 0x20080522
_CAP_SETGID, _CAP_SETUID = 6, 7
_UNCHANGED = 0xFFFFFFFF
"""Asks setfsuid(2) and setfsgid(2) for the present value."""
_KEPT = frozenset(
    {"PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"}
    | {"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "OMP_NUM_THREADS"}
)
_KEPT_BEGINNING = "LC_"


class AccountError(OSError):
    """There is no such account, it is root's, or this process may not act as it. The message says which."""


@dataclass(frozen=True)
class Account:
    """An account that is not root's."""

    name: str
    user_id: int
    group_id: int
    groups: tuple[int, ...]
    home: str
    shell: str


def account_named(name: str) -> Account:
    """The account of a user.

    Raises:
        AccountError: this machine knows none, or it is root's.
    """
    return _account(pwd.getpwnam, name, repr(name))


def account_of(user_id: int) -> Account:
    """The account with a number.

    Raises:
        AccountError: this machine knows none, or it is root's.
    """
    return _account(pwd.getpwuid, user_id, f"user id {user_id}")


def _account(look_up: Callable[[Any], pwd.struct_passwd], key: object, called: str) -> Account:
    try:
        entry = look_up(key)
    except (KeyError, ValueError, OverflowError):
        raise AccountError(f"{called} has no account on this machine") from None
    if entry.pw_uid == 0:
        raise AccountError(f"{entry.pw_name!r} is root, as which nothing of a job is run")
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir, entry.pw_shell)


@contextmanager
def acting_as(account: Account | None) -> Iterator[None]:
    """Have the kernel check what this thread does with files as if the account did it. Needs root.

    Nothing may be awaited inside, and no thread started: that would take the account over.

    Args:
        account: The account; None: go on as before.

    Raises:
        AccountError: this process may not.
    """
    if account is None:
        yield
        return
    before = (_file_user(_UNCHANGED), _file_group(_UNCHANGED), os.getgroups())
    capabilities = _capabilities()
    try:
        _take_on(account.user_id, account.group_id, account.groups)
        # Those of root that concern files went with the user id. The others count, too, where files stand for something
        # else: with CAP_SYS_PTRACE, /proc/PID/cwd leads past closed folders.
        _set_effective(capabilities, _capabilities_to_come_back())
        yield
    finally:
        try:
            _set_effective(capabilities, capabilities.effective)
        finally:
            _go_back(*before)


def _take_on(user_id: int, group_id: int, groups: tuple[int, ...]) -> None:
    _set_groups(groups)
    _file_group(group_id)
    _file_user(user_id)
    if (_file_user(_UNCHANGED), _file_group(_UNCHANGED)) != (user_id, group_id):
        raise AccountError(f"expected to be root, to act as user id {user_id}")


def _go_back(user_id: int, group_id: int, groups: list[int]) -> None:
    _file_user(user_id)
    _file_group(group_id)
    if os.getgroups() != groups:
        _set_groups(tuple(groups))


class _Capabilities(ctypes.Structure):
    """Header and sets of capabilities of this thread, as capget(2) and capset(2) take them."""

    _fields_ = (
        ("version", ctypes.c_uint32),
        ("pid", ctypes.c_int32),
        ("sets", ctypes.c_uint32 * 6),
    )

    @property
    def effective(self) -> int:
        return int(self.sets[0]) | int(self.sets[3]) << 32


def _capabilities() -> _Capabilities:
    capabilities = _Capabilities(_CAPABILITY_VERSION, 0)
    _call_capability("capget", capabilities)
    return capabilities


def _set_effective(known: _Capabilities, effective: int) -> None:
    """Set which of this thread's capabilities count now; it keeps all that it has."""
    known = _Capabilities(_CAPABILITY_VERSION, 0, known.sets)
    known.sets[0], known.sets[3] = effective & 0xFFFFFFFF, effective >> 32
    _call_capability("capset", known)


def _call_capability(name: str, known: _Capabilities) -> None:
    sets = ctypes.byref(known, _Capabilities.sets.offset)
    if getattr(_library(), name)(ctypes.byref(known), sets) != 0:
        raise AccountError(f"{name}: {os.strerror(ctypes.get_errno())}")


def _capabilities_to_come_back() -> int:
    return 1 << _CAP_SETGID | 1 << _CAP_SETUID


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _file_user(user_id: int) -> int:
    return int(_library().setfsuid(ctypes.c_uint(user_id)))


def _file_group(group_id: int) -> int:
    return int(_library().setfsgid(ctypes.c_uint(group_id)))


def _set_groups(groups: tuple[int, ...]) -> None:
    number = _SETGROUPS.get(platform.machine())
    if number is None:
        raise AccountError(f"acting as a user is not known for processors of the kind {platform.machine()}")
    listed = (ctypes.c_uint * len(groups))(*groups)
    if _library().syscall(number, len(groups), listed) != 0:
        raise AccountError(f"expected to be root, to act as a user ({os.strerror(ctypes.get_errno())})")


def may_gain_nothing() -> bool:
    """Whether no program that this process runs gains privileges, such as those of setuid files (no_new_privs)."""
    return bool(_library().prctl(_PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)


def account_environment(own: Mapping[str, str], account: Account) -> dict[str, str]:
    """What an account's processes inherit: of root's environment only what says where programs and devices are."""
    inherited = {name: value for name, value in own.items() if name in _KEPT or name.startswith(_KEPT_BEGINNING)}
    return {**inherited, "HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": account.shell}
