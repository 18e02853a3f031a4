"""Processes that root starts for a user, with the real kernel."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from malletrain.common.accounts import Account, account_named
from malletrain.common.start_process import start_process
from tests.support.everybody import folder_of_everybody

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes as another account")
PYTHON = Path("/usr/bin/python3")
OTHER = "www-data"
SAYS = """
import json, os
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
try:
    os.setuid(0)
    back = True
except OSError:
    back = False
print(json.dumps({
    "ids": os.getresuid() + os.getresgid(), "groups": sorted(os.getgroups()), "umask": os.umask(0), "back": back,
    "gains": status["NoNewPrivs"].strip(), "capabilities": status["CapPrm"].strip(),
    "environment": sorted(os.environ), "folder": os.getcwd(), "session": os.getsid(0) == os.getpid(),
}))
"""


def run(folder: Path, command: list[str], environment: Mapping[str, str], account: Account | None) -> tuple[int, str]:
    """Exit status and output of a process in a folder of its own."""
    log = folder / "log"
    process = start_process(command, folder, environment, log, account=account)
    return process.wait(30), log.read_text()


@needs_root
def test_a_users_process_is_the_users_for_good() -> None:
    if not PYTHON.exists():
        pytest.skip(f"there is no {PYTHON}, and others may not be able to run ours")
    other = account_named(OTHER)
    with folder_of_everybody() as above:
        folder = above / "own"
        folder.mkdir(mode=0o700)
        os.chown(folder, other.user_id, other.group_id)
        status, said = run(folder, [str(PYTHON), "-c", SAYS], {"ONLY": "this"}, other)
        assert status == 0, said
        found = json.loads(said)
        assert "ONLY" in found.pop("environment")
        assert found == {
            "ids": [other.user_id] * 3 + [other.group_id] * 3,
            "groups": sorted(other.groups),
            "umask": 0o077,
            "back": False,
            "gains": "1",
            "capabilities": "0" * 16,
            "folder": str(folder),
            "session": True,
        }
        assert (folder / "log").stat().st_uid == other.user_id
        assert (folder / "log").stat().st_mode & 0o777 == 0o600


@needs_root
def test_nothing_of_the_users_environment_reaches_a_process_that_is_still_root() -> None:
    other = account_named(OTHER)
    with folder_of_everybody() as above:
        folder = above / "own"
        folder.mkdir(mode=0o700)
        os.chown(folder, other.user_id, other.group_id)
        # A library that is not there: the loader of each program that gets this says so.
        status, said = run(folder, ["/bin/true"], {"LD_PRELOAD": "/nonexistent.so", "PYTHONPATH": str(folder)}, other)
    assert status == 0
    assert said.count("/nonexistent.so") == 1, said


@needs_root
@pytest.mark.parametrize("case", ["closed folder", "no program"])
def test_a_program_that_can_not_be_started_says_so_in_the_log(case: str) -> None:
    other = account_named(OTHER)
    with folder_of_everybody() as above:
        log = above / "log"
        log.touch()
        os.chown(log, other.user_id, other.group_id)
        closed = above / "closed"
        closed.mkdir(mode=0o700)
        folder = closed if case == "closed folder" else above
        program = "/bin/true" if case == "closed folder" else "/no/such/program"
        process = start_process([program], folder, {}, log, account=other)
        assert process.wait(30) == 127
        assert f"can't start {program} as user id {other.user_id}: " in log.read_text()


@needs_root
def test_a_log_that_is_a_link_is_not_written() -> None:
    other = account_named(OTHER)
    with folder_of_everybody() as above:
        roots = above / "root's"
        roots.write_text("root's")
        folder = above / "own"
        folder.mkdir(mode=0o700)
        os.chown(folder, other.user_id, other.group_id)
        (folder / "log").symlink_to(roots)
        with pytest.raises(OSError, match="symbolic links"):
            start_process(["/bin/echo", "x"], folder, {}, folder / "log", account=other)
        assert roots.read_text() == "root's"


def test_a_process_of_our_own_gets_what_it_is_given(tmp_path: Path) -> None:
    assert run(tmp_path, ["/bin/sh", "-c", "echo $A; pwd; umask"], {"A": "b"}, None)[1].splitlines()[:2] == [
        "b",
        str(tmp_path),
    ]
    with pytest.raises(FileNotFoundError):
        start_process(["/no/such/program"], tmp_path, {}, tmp_path / "log")
