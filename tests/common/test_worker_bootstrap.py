from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from malletrain.common import environment
from malletrain.common.worker_bootstrap import imports_of, initialiser_of
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


def test_an_interpreter_that_hangs_after_the_end_of_its_script_ends_as_the_script_did(tmp_path: Path) -> None:
    """All at once: each takes as long as an interpreter may take to end."""
    endings = {"": 0, "sys.exit(0)": 0, "sys.exit(3)": 1, "raise OSError": 1, "os._exit(4)": 4}
    workers = dict[str, WorkerProcess]()
    closing = "os.closerange(3, 99)"
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
    assert initialiser_of(script) == (("horovod.torch", "init") if expected else None)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("from malletrain.client.distributed import ElasticTraining", True),
        ("from malletrain.client.distributed import ElasticTraining\nrank = os.environ['RANK']", False),
        ("from malletrain.client.distributed import ElasticTraining\nn = os.environ['LOCAL_RANK']", False),
        ("import torch.distributed as dist", False),
        ("import horovod.torch as hvd", False),
    ],
)
def test_a_torchrun_script_waits_in_its_initialisation_only_if_it_needs_no_place_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, expected: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(content)
    monkeypatch.setenv("MALLETRAIN_BACKEND", "torchrun")
    assert initialiser_of(script) == (("torch.distributed", "init_process_group") if expected else None)


def test_the_bootstrap_repeats_the_names_of_variables_correctly() -> None:
    names = set(re.findall(r'"(MALLETRAIN_\w+)"', BOOTSTRAP.read_text()))
    assert names == {environment.BACKEND, environment.JOB_DIR, environment.PREIMPORT}
