"""Commands that have started what saves: real processes, asked to end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from malletrain.common.worker_process import WorkerProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

TRAINER = """
import signal, sys, time
def leave(*_):
    print("saving", flush=True)
    time.sleep(0.3)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("trains", flush=True)
time.sleep(600)
"""
LAUNCHER = """
import subprocess, sys
sys.exit(subprocess.run([sys.executable, "-S", "train.py"]).returncode)
"""

Start = Callable[..., WorkerProcess]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def begin(folder: Path, log: Path, *command: str) -> WorkerProcess:
    """A worker with a command in a folder with a trainer, which trains."""
    (folder / "train.py").write_text(TRAINER)
    (folder / "launch.py").write_text(LAUNCHER)
    worker = WorkerProcess(command, str(folder), {**os.environ, "PYTHON": sys.executable}, log, warm=False)
    worker.go({})
    wait_until(lambda: "trains" in (log.read_text() if log.exists() else ""), 30, "the trainer")
    return worker


def end(worker: WorkerProcess) -> int | None:
    wait_until(lambda: worker.poll() is not None, 30, "the end")
    worker.close()
    return worker.poll()


SHELL = "set -e; $PYTHON -S train.py; echo the last line"


@pytest.mark.parametrize(
    "command",
    [
        ["/bin/sh", "-c", SHELL],
        ["/bin/sh", "-c", f"trap 'echo heard' TERM; {SHELL}"],
        ["/bin/sh", "-c", f"sh -c '{SHELL}'; true"],
        ["/bin/sh", "-c", "$PYTHON -S train.py | tee copy; echo the last line"],
        ["/bin/sh", "-c", "$PYTHON -S launch.py; echo the last line"],
        ["/bin/sh", "-c", "$PYTHON -S train.py & wait; echo the last line"],
    ],
    ids=["lines", "trap", "nested", "tee", "launcher", "background"],
)
def test_what_a_command_has_started_saves_and_its_last_lines_run(tmp_path: Path, log: Path, command: list[str]) -> None:
    worker = begin(tmp_path, log, *command)
    worker.terminate(20.0)
    assert end(worker) == 0
    lines = [line for line in log.read_text().splitlines() if line != "heard"]
    assert lines == ["trains", "saving", "saved", "the last line"]


def test_who_waits_for_ever_is_asked_when_the_trainer_has_ended(tmp_path: Path, log: Path) -> None:
    worker = begin(tmp_path, log, "/bin/sh", "-c", "$PYTHON -S train.py; sleep 600")
    worker.terminate(2.0)
    assert end(worker) == -signal.SIGTERM
    assert log.read_text().splitlines()[-1] == "saved"


def test_a_shell_that_saves_by_itself_hears_of_it_at_once(tmp_path: Path, log: Path) -> None:
    worker = begin(tmp_path, log, "/bin/sh", "-c", "trap 'echo saved; exit 3' TERM; echo trains; sleep 600 & wait")
    worker.terminate(600.0)
    assert end(worker) == 3
    worker.kill()


def test_who_has_a_handler_hears_of_the_end_of_the_grace_though_the_trainer_hangs(tmp_path: Path, log: Path) -> None:
    deaf = (
        "$PYTHON -S -c 'import signal, time; signal.signal(15, print); print(\"trains\", flush=True); time.sleep(600)'"
    )
    worker = begin(tmp_path, log, "/bin/sh", "-c", f"trap 'echo saved; exit 3' TERM; {deaf} & wait")
    worker.terminate(600.0)
    assert worker.poll() is None
    worker.terminate(0.5)
    assert end(worker) == 3
    worker.kill()
