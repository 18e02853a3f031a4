from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

from malletrain.common import environment
from malletrain.common.handover_memory import HandoverMemories
from malletrain.common.worker_bootstrap import (
    InitHold,
    StartSignal,
    imports_of,
    indifferent_imports,
    may_use_torch,
    waits_in_horovod,
    warm_up,
)
from malletrain.common.worker_process import BOOTSTRAP, WorkerProcess, worker_command
from tests.support.waiting import wait_until


def arguments(command: str, *, warm: bool = True) -> list[str]:
    return worker_command(command.split(), "/bin/python", 1, (3, 4), warm=warm)


@pytest.mark.parametrize(
    ("command", "started"),
    [
        ("python train.py --x 1", f"python {BOOTSTRAP} 1 3 4 warm script train.py --x 1"),
        ("python3 -W ignore -m pkg.train a", f"python3 -W ignore {BOOTSTRAP} 1 3 4 warm module pkg.train a"),
        ("python -mpkg a", f"python {BOOTSTRAP} 1 3 4 warm module pkg a"),
        ("python -um pkg a", f"python -u {BOOTSTRAP} 1 3 4 warm module pkg a"),
        ("python -c pass", f"/bin/python {BOOTSTRAP} 1 3 4 cold python -c pass"),
        ("python -x train.py", f"/bin/python {BOOTSTRAP} 1 3 4 cold python -x train.py"),
        ("./train.sh python", f"/bin/python {BOOTSTRAP} 1 3 4 cold ./train.sh python"),
    ],
)
def test_scripts_and_modules_are_started_warm_and_other_commands_cold(command: str, started: str) -> None:
    assert arguments(command) == started.split()
    assert arguments(command, warm=False) == f"/bin/python {BOOTSTRAP} 1 3 4 cold {command}".split()


@pytest.mark.parametrize(
    "options",
    ["-S train.py", "-S -- train.py", "-IS train.py", "-PS train.py", "-S -m train", "-Smtrain", "-PSm train"],
)
@pytest.mark.processes
def test_a_warm_worker_looks_to_its_script_as_if_the_interpreter_had_started_it(tmp_path: Path, options: str) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(__name__, sys.argv, sys.path)\n")
    command = [sys.executable, *options.split(), "a", "-b"]
    # -S: without site-packages there is nothing to warm up, which would take seconds.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if "-PSm" in options:  # the module is found by no other way
        environment["PYTHONPATH"] = str(tmp_path)
    direct = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    log = tmp_path / "log"
    worker = WorkerProcess(command, str(tmp_path), environment, log)
    wait_until(worker.is_warm, 30, "the warm start")
    worker.go({})
    wait_until(lambda: worker.poll() is not None, 30, "the end")
    worker.close()
    assert log.read_text().splitlines()[-1:] == direct.stdout.splitlines()


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
@pytest.mark.parametrize("chosen", ["", "/own"], ids=["by default", "chosen"])
@pytest.mark.processes
def test_compiled_code_is_kept_in_the_jobs_folder_unless_the_job_says_where(
    tmp_path: Path, warm: bool, chosen: str
) -> None:
    variable = "TORCHINDUCTOR_CACHE_DIR"
    (tmp_path / "train.py").write_text(f"import os\nprint(os.environ['{variable}'])\n")
    environment = {name: value for name, value in os.environ.items() if name != variable}
    environment |= {"MALLETRAIN_JOB_DIR": str(tmp_path / "job"), **({variable: chosen} if chosen else {})}
    log = tmp_path / "log"
    worker = WorkerProcess([sys.executable, "-S", "train.py"], str(tmp_path), environment, log, warm=warm)
    worker.go({})
    wait_until(lambda: worker.poll() is not None, 30, "the end")
    worker.close()
    told = Path(log.read_text().splitlines()[-1])
    assert told == Path(chosen) if chosen else told.parent == tmp_path / "job" / "compiled"


STUCK = """
import atexit, os, sys, time
class Stuck:
    def __del__(self):
        time.sleep(1e6)
stuck = Stuck()
atexit.register(print, "handlers have run", flush=True)
if os.fork() == 0:
    sys.exit(5)  # a copy of the process, whose end is not the worker's
"""


@pytest.mark.processes
def test_an_interpreter_that_hangs_after_the_end_of_its_script_ends_as_the_script_did(tmp_path: Path) -> None:
    """All at once: each takes as long as an interpreter may take to end."""
    endings = {"": 0, "sys.exit(0)": 0, "sys.exit(3)": 1, "raise OSError": 1, "os._exit(4)": 4}
    workers = dict[str, WorkerProcess]()
    closing = "os.closerange(3, 1 << 20)"
    for number, ending in enumerate([*endings, closing]):
        script = tmp_path / f"train{number}.py"
        script.write_text(f"{STUCK}{ending}\n")
        log = script.with_suffix(".log")
        workers[ending] = WorkerProcess([sys.executable, "-S", str(script)], str(tmp_path), {**os.environ}, log)
    for worker in workers.values():
        worker.go({})
    wait_until(lambda: all(worker.poll() is not None for worker in workers.values()), 90, "their ends")
    found = {ending: worker.poll() for ending, worker in workers.items()}
    for worker in workers.values():
        worker.kill()
        worker.close()
    # A script that has closed the pipe can't report how it ended.
    assert found == endings | {closing: -signal.SIGALRM}
    told = (tmp_path / "train0.log").read_text()
    assert "handlers have run" in told


def test_a_scripts_imports_are_found_but_not_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "package").mkdir()
    script = tmp_path / "train.py"
    script.write_text(
        "import os, json as j\nfrom sklearn.datasets import load_digits\nfrom . import x\nimport helper\n"
        "import package.part\nfrom helper import a\nif True:\n    import hidden\n"
    )
    assert imports_of(script) == ["os", "json", "sklearn.datasets"]
    assert indifferent_imports(script) == ["sklearn.datasets"]


@pytest.mark.parametrize("content", ["def (", "\0", None])
def test_a_script_that_can_not_be_read_has_no_imports(tmp_path: Path, content: str | None) -> None:
    script = tmp_path / "train.py"
    if content is not None:
        script.write_text(content)
    assert imports_of(script) == []


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("import horovod.torch as hvd", True),
        ("from horovod import torch as hvd", True),
        ("import horovod.tensorflow.keras as hvd", True),
        ("from malletrain.client.horovod import ElasticTraining", True),
        ("from malletrain.client import elastic\nfrom malletrain.client.elastic import ElasticTraining", True),
        ("import subprocess", False),
        ("import horovodlike", False),
        ("from malletrain.client import report", False),
    ],
)
def test_scripts_that_initialise_horovod_themselves_are_told_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, expected: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(content)
    monkeypatch.setenv("MALLETRAIN_BACKEND", "horovod")
    assert waits_in_horovod(script) == expected
    monkeypatch.setenv("MALLETRAIN_BACKEND", "torchrun")
    assert not waits_in_horovod(script)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("import json", True),
        ("import tensorflow as tf\nimport horovod.tensorflow.keras as hvd", False),
        ("from horovod import keras", True),
        ("import keras\nimport torch", True),
        ("import jax", False),
    ],
)
def test_scripts_of_other_frameworks_do_not_wait_for_torch(tmp_path: Path, content: str, expected: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(content)
    assert may_use_torch(script) == expected


def test_an_import_ahead_that_lacks_a_package_is_not_talked_of_and_one_that_is_not_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "needs_a_framework.py").write_text("import a_framework_that_is_not_here\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MALLETRAIN_BACKEND", "command")
    monkeypatch.setenv("MALLETRAIN_PREIMPORT", "needs_a_framework,mistyped_name")
    warm_up(None)
    said = capsys.readouterr().err
    assert "mistyped_name could not be imported yet" in said
    assert "needs_a_framework" not in said


def test_any_frameworks_first_init_waits_for_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    class Basics:
        def init(self, comm: object = None) -> None:
            calls.append(comm)

    class Start:
        def wait(self) -> None:
            calls.append("start")

    basics = ModuleType("horovod.common.basics")
    vars(basics)["HorovodBasics"] = Basics
    monkeypatch.setitem(sys.modules, "horovod.common.basics", basics)
    hold = InitHold(cast("StartSignal", Start()))
    assert hold.install()
    taken = Basics().init  # as each framework does when it is imported
    taken("told its start")
    hold.armed = True
    taken(comm="told its place")
    taken()
    assert calls == ["told its start", "start", "told its place", None]


def test_the_bootstrap_repeats_the_names_of_variables_correctly() -> None:
    names = set(re.findall(r'"(MALLETRAIN_\w+)"', BOOTSTRAP.read_text()))
    repeated = {environment.BACKEND, environment.JOB_DIR, environment.PREIMPORT, environment.TRACKERS}
    assert names == repeated | {environment.HANDOVER_MEMORY}


@pytest.mark.processes
def test_a_command_that_is_no_python_has_started_once_it_runs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = ["/bin/sh", "-c", "ls /proc/self/fd | wc -l; exec sleep 600"]
    worker = WorkerProcess(command, str(tmp_path), dict(os.environ), log)
    wait_until(worker.is_warm, 30, "the boot")
    assert not worker.started
    worker.go({})
    wait_until(lambda: worker.is_warm() and worker.started, 30, "the program")
    wait_until(lambda: log.read_text().strip(), 30, "its first line")
    worker.kill()
    wait_until(lambda: worker.poll() is not None, 30, "the end")
    worker.close()
    assert log.read_text().split() == ["4"], "it has inherited no pipe: input, output, errors, and the folder listed"


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.processes
def test_a_worker_gets_the_memory_of_its_place_and_knows_its_number(tmp_path: Path, warm: bool) -> None:
    memories = HandoverMemories()
    script, log = tmp_path / "script.py", tmp_path / "log"
    script.write_text(
        "import os\n"
        "number = int(os.environ['MALLETRAIN_HANDOVER_MEMORY'])\n"
        "print(os.pread(number, 5, 0).decode(), os.get_inheritable(number), flush=True)\n"
        "os.pwrite(number, b'after', 0)\n"
    )
    os.pwrite(memories.of("n1", 0), b"first", 0)
    command = [sys.executable, str(script)]
    worker = WorkerProcess(command, str(tmp_path), dict(os.environ), log, warm=warm, handover=memories.of("n1", 0))
    wait_until(worker.is_warm, 30, "the boot")
    worker.go({})
    assert wait_until(lambda: None if worker.poll() is None else [worker.poll()], 30, "the end") == [0], log.read_text()
    worker.close()
    # What has started it may be a program that starts the training: that gets the memory, too.
    assert log.read_text().split() == ["first", str(not warm)]
    assert os.pread(memories.of("n1", 0), 5, 0) == b"after"
    memories.close()


@pytest.mark.parametrize(("program", "status"), [("no-such-program", 127), ("/etc/passwd", 126)])
@pytest.mark.processes
def test_a_command_that_can_not_be_run_says_so_in_its_log(tmp_path: Path, program: str, status: int) -> None:
    log = tmp_path / "log"
    worker = WorkerProcess([program], str(tmp_path), dict(os.environ), log)
    worker.go({})
    wait_until(lambda: worker.poll() is not None, 30, "the end")
    worker.close()
    assert worker.poll() == status
    assert f"can't run {program}" in log.read_text()
