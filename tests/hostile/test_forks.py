"""No process with threads of gRPC forks: what starts processes is listed here, all else uses posix_spawn."""

from __future__ import annotations

import ast
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from tests.support.stranger import needs_another_account

ROOT = Path(__file__).parents[2] / "services" / "malletrain"
_ONE_COMMAND = "a command of a user, who sees it and can end it"
_ONE_THREAD = "a process with one thread, which exists to fork"
_FORKS = "the same: it looks itself for threads before it forks"
# By file: what starts processes there by other means than `common/child_process.py`, and why that is no risk.
OTHER_STARTS = {
    "cli/check/command.py": {"subprocess.run"},
    "cli/demo/command.py": {"subprocess.Popen"},
    "cli/jobs/mirroring.py": {"subprocess.run"},
    "cli/operate/doctor.py": {"subprocess.run"},
    "cli/operate/doctor_checks.py": {"subprocess.run"},
    "cli/operate/service_forks.py": {"os.fork"},
    "reproduce/executors.py": {"ProcessPoolExecutor"},
    "common/standby/child.py": {"os.fork"},
    "common/standby/program.py": {"os.fork"},
}
REASONS = {
    "cli": _ONE_COMMAND,
    "cli/operate/service_forks.py": _FORKS,
    "reproduce": _ONE_COMMAND,
    "common": _ONE_THREAD,
}
_CALLS = {
    *("Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput"),
    *("create_subprocess_exec", "create_subprocess_shell", "subprocess_exec", "subprocess_shell"),
    *("fork", "forkpty", "system", "popen", "ProcessPoolExecutor", "Process"),
}
_MODULES = {"subprocess", "os", "pty", "multiprocessing", "asyncio", "asyncio.subprocess", "loop"}


def starts(source: str) -> set[str]:
    """The calls in a source that start processes."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            module, _, name = ast.unparse(node.func).rpartition(".")
            if name in _CALLS and (module in _MODULES or (not module and name == "ProcessPoolExecutor")):
                found.add(ast.unparse(node.func))
    return found - {"asyncio.run"}


def test_services_start_processes_in_one_way() -> None:
    found = {str(path.relative_to(ROOT)): starts(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
    assert {name: calls for name, calls in found.items() if calls} == OTHER_STARTS
    assert {name if name in REASONS else name.partition("/")[0] for name in OTHER_STARTS} == set(REASONS)


def test_starts_are_found() -> None:
    source = "import os\nasync def f():\n    await asyncio.create_subprocess_exec('x')\n    os.fork()\n    spawn('y')\n"
    assert starts(source) == {"asyncio.create_subprocess_exec", "os.fork"}


@needs_another_account
def test_a_fork_of_the_tests_runs_no_handler_of_grpc(capfd: pytest.CaptureFixture[str]) -> None:
    """Such a handler may keep the child from its program; without one here `user=` is safe in all tests."""
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        for _ in range(5):
            subprocess.run(["/bin/true"], user="nobody", check=True, timeout=30)
    finally:
        server.stop(None).wait(10)
    assert "fork" not in capfd.readouterr().err
