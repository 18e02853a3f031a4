"""Acting as another account, with the real kernel."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from malletrain.common.accounts import (
    Account,
    AccountError,
    account_environment,
    account_named,
    account_of,
    acting_as,
)
from tests.support.everybody import folder_of_everybody

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another account")
OTHER = "www-data"


def test_root_and_unknown_users_are_no_accounts() -> None:
    for name in ("root", "no-such-user", "", "a\0b", "0"):
        with pytest.raises(AccountError):
            account_named(name)
    for number in (0, 4_000_000_123, 1 << 40):
        with pytest.raises(AccountError):
            account_of(number)


def test_an_account_is_that_of_the_system() -> None:
    found, entry = account_named("nobody"), pwd.getpwnam("nobody")
    assert found == account_of(entry.pw_uid)
    assert (found.user_id, found.group_id, found.home) == (entry.pw_uid, entry.pw_gid, entry.pw_dir)
    assert entry.pw_gid in found.groups


@needs_root
def test_files_are_accessed_as_the_account_in_this_thread_only() -> None:
    other, before = account_named(OTHER), os.getgroups()
    with folder_of_everybody() as folder:
        private = folder / "private"
        private.write_text("root's")
        private.chmod(0o600)
        home = folder / "home"
        home.mkdir()
        os.chown(home, other.user_id, other.group_id)
        home.chmod(0o700)
        (home / "link").symlink_to(private)
        go, seen = threading.Event(), []

        def read_elsewhere() -> None:
            go.wait(10)
            seen.append(private.read_text())

        elsewhere = threading.Thread(target=read_elsewhere)
        elsewhere.start()
        with acting_as(other):
            (home / "own").write_text("own")
            with pytest.raises(PermissionError):
                (home / "link").read_text()
            with pytest.raises(PermissionError):
                (folder / "new").write_text("x")
            go.set()
            elsewhere.join(10)
        assert seen == ["root's"]
        assert private.read_text() == "root's"
        assert (home / "own").stat().st_uid == other.user_id
        assert os.getgroups() == before


@needs_root
def test_an_error_inside_ends_acting() -> None:
    with pytest.raises(ZeroDivisionError), acting_as(account_named(OTHER)):
        _ = 1 / 0
    assert _file_user() == 0


@needs_root
def test_the_files_of_the_accounts_groups_can_be_accessed_and_those_of_ours_can_not() -> None:
    entry = pwd.getpwnam(OTHER)
    member = Account(OTHER, entry.pw_uid, entry.pw_gid, (entry.pw_gid, 4242), "/", "/bin/sh")
    with folder_of_everybody() as folder:
        shared, roots = folder / "shared", folder / "roots"
        for path, group in ((shared, 4242), (roots, 0)):
            path.write_text("x")
            os.chown(path, 0, group)
            path.chmod(0o640)
        with acting_as(member):
            assert shared.read_text() == "x"
            with pytest.raises(PermissionError):
                roots.read_text()


@needs_root
def test_who_is_not_root_can_not_act_as_others() -> None:
    entry = pwd.getpwnam("nobody")
    code = (
        "import os\nfrom malletrain.common.accounts import *\nother = account_named('www-data')\n"
        f"os.setgroups([]); os.setgid({entry.pw_gid}); os.setuid({entry.pw_uid})\n"
        "try:\n with acting_as(other): print('acts')\nexcept AccountError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "expected to be root" in done.stdout


def test_of_roots_environment_little_is_passed_on() -> None:
    other = Account("ada", 1000, 1000, (), "/home/ada", "/bin/zsh")
    own = {"PATH": "/bin", "LC_ALL": "C", "AWS_SECRET_KEY": "s", "HOME": "/root", "CUDA_VISIBLE_DEVICES": "1"}
    assert account_environment(own, other) == {
        "PATH": "/bin",
        "LC_ALL": "C",
        "CUDA_VISIBLE_DEVICES": "1",
        "HOME": "/home/ada",
        "USER": "ada",
        "LOGNAME": "ada",
        "SHELL": "/bin/zsh",
    }


def _file_user() -> int:
    status = Path("/proc/thread-self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("Uid:")).split()[4])


@needs_root
def test_no_other_right_of_root_is_left_while_it_acts() -> None:
    other = account_named(OTHER)
    before = _effective_capabilities()
    with acting_as(other):
        inside = _effective_capabilities()
        # Another user's process as a way past a closed folder: CAP_SYS_PTRACE would open it.
        with pytest.raises(PermissionError):
            list(Path("/proc/1/cwd").iterdir())
    assert inside == 1 << 6 | 1 << 7, "CAP_SETGID and CAP_SETUID, to come back"
    assert _effective_capabilities() == before


def _effective_capabilities() -> int:
    status = Path("/proc/thread-self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("CapEff:")).split()[1], 16)
