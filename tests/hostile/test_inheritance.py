"""What root has beside its rights, keys and raised limits, does not reach the processes of a job."""

from __future__ import annotations

import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest

from malletrain.common import drop_privileges
from tests.support.everybody import folder_of_everybody
from tests.support.stranger import needs_another_account

_AS_ROOT = """
import ctypes, platform, resource, sys
from pathlib import Path
from malletrain.common.accounts import account_named
from malletrain.common.start_process import start_process

ADD_KEY = {"x86_64": 248, "aarch64": 217}[platform.machine()]
KEYCTL = {"x86_64": 250, "aarch64": 219}[platform.machine()]
libc = ctypes.CDLL(None, use_errno=True)
session = libc.syscall(ctypes.c_long(KEYCTL), ctypes.c_long(1), None)
key = libc.syscall(ctypes.c_long(ADD_KEY), b"user", b"roots-secret", b"x", ctypes.c_long(1), ctypes.c_long(-3))
if session < 0 or key < 0:
    print("no keyrings", ctypes.get_errno())
# As keys for file systems are: whoever possesses the keyring may see and use it.
first = resource.prlimit(1, resource.RLIMIT_MSGQUEUE)[1]
try:
    resource.setrlimit(resource.RLIMIT_MSGQUEUE, (first + 1000, first + 1000))
    resource.setrlimit(resource.RLIMIT_RTPRIO, (50, 50))
    resource.setrlimit(resource.RLIMIT_NICE, (40, 40))
except ValueError:
    pass  # this root may not, as in some containers: then it has nothing to pass on
folder = Path(sys.argv[1])
show = "cat /proc/self/limits; echo keys; cat /proc/keys; echo end"
account = account_named("nobody")
log = folder / "log"
process = start_process(["/bin/sh", "-c", show], folder, {"PATH": "/usr/bin:/bin"}, log, account=account)
process.wait(60)
print("most in queues", first)
print(log.read_text())
"""


def test_what_root_has_raised_is_lowered_and_what_it_has_lowered_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    infinity = resource.RLIM_INFINITY
    first = {"RLIMIT_NOFILE": (1024, 4096), "RLIMIT_NPROC": (100, 100), "RLIMIT_CORE": (0, infinity)}
    own = {
        "RLIMIT_NOFILE": (9000, 9000),
        "RLIMIT_NPROC": (50, infinity),
        "RLIMIT_CORE": (infinity, infinity),
        "RLIMIT_RTPRIO": (20, 99),
        "RLIMIT_NICE": (0, 40),
        "RLIMIT_MEMLOCK": (infinity, infinity),
    }
    fake = SimpleNamespace(
        RLIM_INFINITY=infinity,
        getrlimit=lambda name: own[name],
        prlimit=lambda _, name: first[name],
        setrlimit=lambda name, limits: own.update({name: limits}),
        **{name: name for name in own},
    )
    monkeypatch.setattr(drop_privileges, "resource", fake)
    drop_privileges.lower_limits()
    assert own == {
        "RLIMIT_NOFILE": (4096, 4096),
        "RLIMIT_NPROC": (50, 100),
        "RLIMIT_CORE": (infinity, infinity),
        "RLIMIT_RTPRIO": (0, 0),
        "RLIMIT_NICE": (0, 0),
        "RLIMIT_MEMLOCK": (infinity, infinity),
    }


@needs_another_account
def test_neither_roots_keyring_nor_its_limits_reach_a_job() -> None:
    with folder_of_everybody() as folder:
        folder.chmod(0o777)
        done = subprocess.run(
            [sys.executable, "-c", _AS_ROOT, str(folder)], capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 0, done.stderr
    if "no keyrings" in done.stdout:
        pytest.skip("the kernel has no keyrings")
    shown, _, keys = done.stdout.partition("keys\n")
    limits = {line[:25].strip(): line[25:].split()[:2] for line in shown.splitlines()}
    first = int(shown.split("most in queues ")[1].split()[0])
    assert max(map(int, limits["Max msgqueue size"])) <= first
    assert limits["Max realtime priority"] == ["0", "0"]
    assert limits["Max nice priority"] == ["0", "0"]
    assert "end" in keys
    assert "roots-secret" not in keys
