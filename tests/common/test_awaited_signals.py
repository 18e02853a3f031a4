"""Signals that programs wait for, and what handlers of our own may do."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import malletrain

PROGRAM = """\
import os, signal, sys, threading
from malletrain.common.awaited_signals import AwaitedSignals

noted = []
signals = AwaitedSignals(signal.SIGTERM, signal.SIGUSR1, note=lambda: noted.append(1))
assert not signals.wait(0.0)

def send():
    for _ in range(20_000):
        os.kill(os.getpid(), signal.SIGUSR1)

sender = threading.Thread(target=send)
sender.start()
seen = 0
while sender.is_alive():
    seen += signals.wait(0.001)
while signals.wait(0.0):
    seen += 1
assert seen == len(noted) > 0, (seen, len(noted))
print("waits", flush=True)
assert signals.wait()
print("ends")
"""
LOCKLESS = {
    "os.write",
    "suppress",
    "time.monotonic",
    "signal.Signals",
    "signal.getsignal",
    "signal.signal",
    "self._note",  # of AwaitedSignals: whoever gives it is told
    "_ignore_signals",
    "SiteJobEnded",
    "CopyStoppedError",
}
"""What handlers call: nothing that takes a lock, which the main thread may hold just then."""
LIBRARY = {"signal.SIG_IGN", "signal.SIG_DFL", "signal.default_int_handler", "handler"}
"""Handlers that are not ours; `handler` is what `SiteSignals` has found and restores."""


def test_a_signal_is_waited_for_however_often_it_comes() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        os.kill(process.pid, signal.SIGTERM)
        assert process.stdout.read() == "ends\n"
    assert process.returncode == 0


def sources() -> list[Path]:
    folders = [Path(folder) for folder in malletrain.__path__]
    return [file for folder in folders for file in folder.rglob("*.py") if "_pb2" not in file.name]


def handlers(tree: ast.Module) -> list[ast.AST]:
    """What a module gives to `signal.signal`: its functions and lambdas, and all that is no name of them."""
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    found: list[ast.AST] = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if ast.unparse(call.func) != "signal.signal":
            continue
        name = ast.unparse(call.args[1])
        if name not in LIBRARY:
            found.append(functions.get(name.rpartition(".")[2], call.args[1]))
    return found


def calls(handler: ast.AST) -> set[str]:
    """What a handler calls; itself where it is neither a function of the module nor a lambda."""
    if not isinstance(handler, ast.FunctionDef | ast.Lambda):
        return {ast.unparse(handler)}
    return {ast.unparse(node.func) for node in ast.walk(handler) if isinstance(node, ast.Call)}


def test_no_handler_takes_a_lock() -> None:
    """One that sets an event waits for ever where the main thread is just taking that event's lock to wait for it."""
    found = 0
    for file in sources():
        if "signal.signal(" not in (text := file.read_text(encoding="utf-8")):
            continue
        for handler in handlers(ast.parse(text)):
            found += 1
            called = calls(handler)
            assert called <= LOCKLESS, f"{file.name}: {called - LOCKLESS}"
    assert found >= 5


@pytest.mark.parametrize(
    "text",
    [
        "def end(*_):\n    ending.set()\nsignal.signal(signal.SIGTERM, end)",
        "class A:\n    def end(self, *_):\n        self.queue.put(1)\nsignal.signal(signal.SIGTERM, a.end)",
        "signal.signal(signal.SIGTERM, lambda *_: ending.set())",
        "signal.signal(signal.SIGTERM, somebody_elses)",
    ],
)
def test_one_that_did_would_be_found(text: str) -> None:
    (handler,) = handlers(ast.parse(text))
    assert calls(handler) - LOCKLESS
