"""Standby processes, with real processes; most have an interpreter without packages, which starts at once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from malletrain.common.processes import read_arguments, read_environment
from malletrain.common.standby.config import StandbyConfig, standby_config_for
from tests.common.standby.keeping import ENVIRONMENT, Kept, is_forked, kept, small_environment
from tests.support.waiting import wait_until, wait_until_async

pytestmark = pytest.mark.processes

LOOKS = """
import json, os, signal, sys, threading, warnings
mask = os.umask(0)
os.umask(mask)
print(json.dumps({
    "name": __name__, "file": __file__, "argv": sys.argv, "path": sys.path, "flags": str(sys.flags), "umask": mask,
    "folder": os.getcwd(), "environment": dict(os.environ), "session": os.getsid(0) == os.getpgid(0) == os.getpid(),
    "parent": os.getppid(), "threads": threading.active_count(), "executable": sys.executable,
    "signals": {str(number): str(signal.getsignal(number)) for number in signal.valid_signals()},
    "masked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "warnings": str(warnings.filters),
    "files": [os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, 2)],
    "open": len(os.listdir("/proc/self/fd")), "encoding": sys.stdout.encoding, "stdin": sys.stdin.read(),
    "through": sys.stdout.write_through, "prefix": sys.prefix, "limits": str(__import__("resource").getrlimit(7)),
}))
"""
WAITS = "import time\nprint('waits', flush=True)\ntime.sleep(600)\n"

FAILS = """
import atexit, os, sys
sys.excepthook = lambda kind, error, trace: print("hook:", kind.__name__, error, flush=True)
atexit.register(print, "at exit", flush=True)
print(os.getpid(), flush=True)
raise RuntimeError("another worker is lost")
"""


@pytest.fixture
def small(tmp_path: Path) -> tuple[StandbyConfig, Path]:
    return small_environment(tmp_path / "environment")


def test_a_forked_worker_finds_what_a_new_interpreter_finds(tmp_path: Path, small: tuple[StandbyConfig, Path]) -> None:
    with kept(small[0]) as running:
        cold = json.loads(running.run(tmp_path, LOOKS))
        assert "no standby process is ready" in running.said[-1]
        running.wait_ready()
        environment = {**ENVIRONMENT, "JOBS_OWN": "é\n=x"}
        forked = json.loads(running.run(tmp_path, LOOKS, environment))
        assert forked["environment"].pop("JOBS_OWN") == "é\n=x"
        assert forked == cold
        assert "new interpreter" not in running.said[-1]


def test_a_forked_worker_that_fails_ends_as_a_new_interpreter_does(
    tmp_path: Path, small: tuple[StandbyConfig, Path]
) -> None:
    # Training frameworks save in hooks like these when another worker is lost.
    def ending(running: Kept) -> tuple[list[str], int | None]:
        (tmp_path / "log").unlink(missing_ok=True)
        worker = running.start(tmp_path, FAILS)
        wait_until(lambda: worker.poll() is not None, 30, "its end")
        said = (tmp_path / "log").read_text().splitlines()
        assert str(worker.pid) in said
        return [line for line in said if "hook" in line or "exit" in line], worker.poll()

    with kept(small[0]) as running:
        cold = ending(running)
        assert cold == (["hook: RuntimeError another worker is lost", "at exit"], 1)
        running.wait_ready()
        said = len(running.said)
        assert ending(running) == cold
        assert not any("new interpreter" in line for line in running.said[said:])


def test_others_see_environment_and_arguments_of_the_worker(tmp_path: Path, small: tuple[StandbyConfig, Path]) -> None:
    with kept(small[0]) as running:
        running.wait_ready()
        worker = running.start(tmp_path, WAITS)
        assert is_forked(worker.pid)
        shown = read_environment(worker.pid)
        assert {"MALLETRAIN_NODE": "n1", "MALLETRAIN_JOB_ID": "j1"}.items() <= shown.items()
        assert "MALLETRAIN_STANDBY_ROOM" not in shown
        assert read_arguments(worker.pid)[-3:] == ["script.py", "a", "-b"]
        worker.kill()
        wait_until(lambda: worker.poll() == -signal.SIGKILL, 10, "its end")


def test_a_worker_outlives_a_killed_standby_process_which_is_replaced(
    tmp_path: Path, small: tuple[StandbyConfig, Path]
) -> None:
    with kept(small[0]) as running:
        first = running.wait_ready()
        worker = running.start(tmp_path, WAITS)
        os.kill(first, signal.SIGKILL)
        running.wait_said("no standby process for 5 s: it has ended")
        running.tick()
        assert running.manager.pid == 0
        assert worker.poll() is None
        running.clock.now += 5.1
        running.wait_ready(but_not=first)
        worker.kill()
        wait_until(lambda: worker.poll() is not None, 10, "its end")


def test_variables_that_are_read_ahead_must_be_the_same(tmp_path: Path, small: tuple[StandbyConfig, Path]) -> None:
    config, packages = small
    (packages / "reads.py").write_text("import os\nVALUE = os.environ.get('READ_AT_IMPORT')\n")
    prints = "import os, reads\nprint(reads.VALUE, os.environ.get('OMP_NUM_THREADS'))\n"
    with kept(StandbyConfig(config.interpreter, ENVIRONMENT, ("reads",))) as running:
        first = running.wait_ready()
        assert running.run(tmp_path, prints) == "None 1\n"
        assert running.manager.pid == first
        other = {**ENVIRONMENT, "READ_AT_IMPORT": "x", "OMP_NUM_THREADS": "2"}
        assert running.run(tmp_path, prints, other) == "x 2\n"
        assert "variables differ: OMP_NUM_THREADS, READ_AT_IMPORT" in running.said[-1]
        second = running.wait_ready(but_not=first)
        assert running.run(tmp_path, prints, other) == "x 2\n"
        assert running.manager.pid == second


def test_changed_packages_end_the_standby_process(tmp_path: Path, small: tuple[StandbyConfig, Path]) -> None:
    config, packages = small
    with kept(config) as running:
        first = running.wait_ready()
        (packages / "new-1.0.dist-info").mkdir()
        assert running.run(tmp_path, "print('x')") == "x\n"
        assert any("packages have changed" in line for line in running.said)
        running.clock.now += 5.1
        running.wait_ready(but_not=first)


def test_of_a_scripts_imports_only_those_that_take_no_notice_of_its_place_are_made_ahead_and_once(
    tmp_path: Path, small: tuple[StandbyConfig, Path]
) -> None:
    config, packages = small
    (packages / "numpy.py").write_text("import os\nIMPORTED_BY = os.getpid()\n")
    (packages / "other.py").write_text("import os\nIMPORTED_BY = os.getpid()\n")
    (tmp_path / "own.py").write_text("import os\nIMPORTED_BY = os.getpid()\n")
    script = (
        "import os, numpy, other, own\n"
        "print(numpy.IMPORTED_BY, other.IMPORTED_BY == os.getpid(), own.IMPORTED_BY == os.getpid())\n"
    )
    with kept(config) as running:
        first = running.wait_ready()
        assert running.run(tmp_path, script, patient=True) == f"{first} True True\n"
        assert not running.manager.is_worth_waiting([running.python, "script.py"], str(tmp_path), ENVIRONMENT)
        (packages / "scipy.py").write_text("import os\nIMPORTED_BY = os.getpid()\n")
        # An edited script is looked at again.
        edited = "import scipy\nprint(scipy.IMPORTED_BY)\n"
        assert running.run(tmp_path, edited, patient=True) == f"{first}\n"
        assert running.manager.pid == first


@pytest.mark.parametrize("way", ["PYTHONPATH", ".pth"])
def test_packages_that_a_sites_modules_or_another_environment_add_are_imported_ahead(
    tmp_path: Path, small: tuple[StandbyConfig, Path], way: str
) -> None:
    config, packages = small
    added = tmp_path / "software/SciPy-bundle/2025.06/lib/python3.11/site-packages"
    own = tmp_path / "own"
    for folder, name in ((added, "scipy"), (own, "sklearn")):
        folder.mkdir(parents=True)
        (folder / f"{name}.py").write_text("import os\nIMPORTED_BY = os.getpid()\n")
    environment = dict(ENVIRONMENT)
    if way == "PYTHONPATH":
        environment["PYTHONPATH"] = f"{added}/:{own}"
    else:
        (packages / "others.pth").write_text(f"{added}\n{own}\n")
    script = "import os, scipy, sklearn\nprint(scipy.IMPORTED_BY, sklearn.IMPORTED_BY == os.getpid())\n"
    with kept(StandbyConfig(config.interpreter, environment, ("scipy", "sklearn"))) as running:
        first = running.wait_ready()
        assert running.run(tmp_path, script, environment) == f"{first} True\n"
        (added / "scipy-2.7.dist-info").mkdir()
        assert running.run(tmp_path, "print('x')", environment) == "x\n"
        assert any("packages have changed" in line for line in running.said)


def test_the_first_worker_shows_how_to_start_a_standby_process_which_forks_it(
    tmp_path: Path, small: tuple[StandbyConfig, Path]
) -> None:
    with kept(None, python=small[0].interpreter) as running:
        worker = running.start(tmp_path, WAITS, patient=True)
        assert is_forked(worker.pid), running.said
        worker.kill()
        wait_until(lambda: worker.poll() is not None, 10, "its end")


def test_nobody_waits_for_long_or_for_what_would_be_refused(tmp_path: Path, small: tuple[StandbyConfig, Path]) -> None:
    config, packages = small
    (packages / "slow.py").write_text("import time\ntime.sleep(600)\n")
    (tmp_path / "script.py").touch()
    with kept(StandbyConfig(config.interpreter, ENVIRONMENT, ("slow",))) as running:
        running.tick()

        def is_worth_waiting(program: str, environment: dict[str, str]) -> bool:
            return running.manager.is_worth_waiting([program, "script.py"], str(tmp_path), environment)

        assert is_worth_waiting(running.python, ENVIRONMENT)
        assert not is_worth_waiting(running.python, {**ENVIRONMENT, "OMP_NUM_THREADS": "3"})
        assert not is_worth_waiting(sys.executable, ENVIRONMENT)
        assert not is_worth_waiting("/bin/sh", ENVIRONMENT)
        running.clock.now += 20.1
        assert not is_worth_waiting(running.python, ENVIRONMENT)


async def test_a_hanging_standby_process_keeps_nobody_from_other_work(
    tmp_path: Path, small: tuple[StandbyConfig, Path]
) -> None:
    (small[1] / "module.py").write_text("import pathlib, sys\npathlib.Path(sys.argv[1]).write_text('ran')\n")

    async def fork(running: Kept) -> int | None:
        with (tmp_path / "log").open("wb") as log:
            words = [str(tmp_path / "made")]
            return await running.manager.fork_module(
                running.python, "module", words, str(tmp_path), ENVIRONMENT, log.fileno()
            )

    with kept(small[0]) as running:
        first = running.wait_ready()
        assert await fork(running) is not None
        await wait_until_async(lambda: (tmp_path / "made").exists())
        os.kill(first, signal.SIGSTOP)
        asked = asyncio.create_task(fork(running))
        await asyncio.sleep(0)
        assert not asked.done()  # and yet this test goes on
        assert await asked is None
        assert "it has not answered" in running.said[-1]
        assert not psutil.pid_exists(first)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()", "1 threads"),
        ("import socket\nkept = socket.socket()", "opened a connection"),
    ],
)
def test_a_module_that_can_not_be_shared_is_barred(
    tmp_path: Path, small: tuple[StandbyConfig, Path], content: str, reason: str
) -> None:
    config, packages = small
    (packages / "sklearn.py").write_text(content)
    with kept(config) as running:
        first = running.wait_ready()
        running.run(tmp_path, "import os, sklearn\nos._exit(0)", patient=True)
        running.wait_said(reason)
        assert "sklearn" in running.said[-1]
        running.clock.now += 5.1
        second = running.wait_ready(but_not=first)
        running.run(tmp_path, "import os, sklearn\nos._exit(0)", patient=True)
        assert running.manager.pid == second
        assert running.manager.is_ready


def test_a_standby_process_that_takes_too_much_memory_is_ended(small: tuple[StandbyConfig, Path]) -> None:
    with kept(small[0], memory_bytes=1 << 20) as running:
        first = running.wait_ready()
        running.clock.now += 11
        running.wait_said("more than 1 MiB")
        assert running.manager.pid == 0
        assert not psutil.pid_exists(first)


def test_nothing_is_left_when_the_parent_is_killed(tmp_path: Path, small: tuple[StandbyConfig, Path]) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\n"
        "from tests.common.standby.keeping import Kept, StandbyConfig, ENVIRONMENT\n"
        "kept = Kept(StandbyConfig(sys.argv[1], ENVIRONMENT, ()))\nstandby = kept.wait_ready()\n"
        "worker = kept.start(Path(sys.argv[2]), 'import time; time.sleep(600)')\n"
        "print(standby, worker.pid, flush=True)\ntime.sleep(600)\n"
    )
    root = Path(__file__).parents[3]
    parent = subprocess.Popen(
        [sys.executable, "-c", program, small[0].interpreter, str(tmp_path)],
        cwd=root,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    found = [psutil.Process(pid) for pid in pids]
    assert len(found) == 2
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs(found, timeout=10)
    assert alive == []


@pytest.mark.horovod
def test_workers_of_torch_do_not_share_random_numbers(tmp_path: Path) -> None:
    draws = (
        "import random, numpy, torch, multiprocessing\n"
        "print(random.random(), numpy.random.rand(), torch.rand(1).item(), torch.initial_seed())\n"
        "print(multiprocessing.current_process().authkey.hex())\n"
        "assert not torch.cuda.is_initialized()\n"
        # A worker whose script imports Horovod at its top would wait in `hvd.init()`, which this one never calls.
        "def load():\n    import horovod.torch\n"
        "load()\nassert not torch.cuda.is_initialized()\n"
    )
    with kept(standby_config_for(sys.executable, ENVIRONMENT)) as running:
        running.wait_ready()
        first, second = (running.run(tmp_path, draws).split() for _ in range(2))
        assert len(first) == len(second) == 5
        assert not set(first) & set(second)
        assert "new interpreter" not in "".join(running.said)


@pytest.mark.horovod
def test_threads_are_those_that_a_new_interpreter_has(tmp_path: Path) -> None:
    counts = (
        "import ctypes, numpy, torch\n"
        "paths = {line.split()[-1] for line in open('/proc/self/maps') if 'openblas' in line}\n"
        "names = ('scipy_openblas_get_num_threads64_', 'openblas_get_num_threads')\n"
        "blas = [getattr(ctypes.CDLL(p), n)() for p in sorted(paths) for n in names if hasattr(ctypes.CDLL(p), n)]\n"
        "print(torch.get_num_threads(), blas)\n"
    )
    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "2"}
    with kept(standby_config_for(sys.executable, environment)) as running:
        cold = running.run(tmp_path, counts, environment)
        running.wait_ready()
        assert running.run(tmp_path, counts, environment) == cold
        assert "new interpreter" not in running.said[-1]
