"""A worker is to its script what an interpreter would be, forked or not; and nothing runs before its place is known."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from malletrain.common.orphans import adopt_orphans
from malletrain.common.standby.config import StandbyConfig
from malletrain.common.worker_bootstrap import INDIFFERENT, script_of
from malletrain.common.worker_process import WorkerProcess
from tests.common.standby.keeping import ENVIRONMENT, JOB, PATIENCE, Kept, is_forked, kept, small_environment
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

LOOK = """
import json, logging, multiprocessing, os, pickle, signal, sys, threading, warnings
import multiprocessing.spawn

OURS = ("MALLETRAIN_", "TORCHINDUCTOR_", "_")  # the shell's own name begins with a line


def work():
    return 1


def look():
    main = sys.modules["__main__"]
    told = multiprocessing.spawn.get_preparation_data("child")
    return {
        "main is here": vars(main) is globals(),
        "file": globals().get("__file__"),
        "name": __name__,
        "package": __package__,
        "doc": __doc__,
        "loader": type(__loader__).__name__,
        "spec": __spec__ and (__spec__.name, __spec__.origin, __spec__.parent),
        "builtins": type(__builtins__).__name__,
        "names": sorted(globals()),
        "argv": sys.argv,
        "original arguments": sys.orig_argv,
        "path": sys.path,
        "flags": list(sys.flags),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "folder": os.getcwd(),
        "umask": os.umask(0o22),
        "group": os.getpgrp() == os.getpid(),
        "threads": [thread.name for thread in threading.enumerate()],
        "signals": {str(number): str(signal.getsignal(number)) for number in (2, 15, 13, 14, 17)},
        "blocked": sorted(map(str, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
        "streams": [
            (stream.encoding, stream.errors, stream.line_buffering, stream.name, stream.mode)
            for stream in (sys.stdin, sys.stdout, sys.stderr)
        ],
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__],
        "told to processes": {name: value for name, value in told.items() if name not in ("authkey", "start_method")},
        "process": [multiprocessing.current_process().name, multiprocessing.parent_process() is None],
        "start method": multiprocessing.get_start_method(),
        "pickled": pickle.loads(pickle.dumps(work))() == 1,
        "module of a function": work.__module__,
        "log handlers": len(logging.getLogger().handlers),
        "recursion": sys.getrecursionlimit(),
        "trace": [sys.gettrace() is None, sys.getprofile() is None],
        "variables": {name: value for name, value in os.environ.items() if not name.startswith(OURS)},
    }


if __name__ == "__main__":
    print(json.dumps(look()), flush=True)
"""
SPAWN = """
import multiprocessing, os, tempfile

def work(queue):
    queue.put("from the process")

if __name__ == "__main__":
    os.chdir(tempfile.mkdtemp())
    for method in ("spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        process = context.Process(target=work, args=(queue,))
        process.start()
        print(method, queue.get(), flush=True)
        process.join()
"""


@pytest.fixture(scope="module")
def standby(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    config, _ = small_environment(tmp_path_factory.mktemp("venv"))
    modules = ("logging", "multiprocessing.spawn", "multiprocessing.pool", "tempfile", "threading")
    with kept(StandbyConfig(config.interpreter, config.environment, modules)) as found:
        found.wait_ready()
        yield found


def run(standby: Kept, folder: Path, arguments: list[str], *, forked: bool) -> tuple[str, int | None]:
    """What a worker prints, and its exit status."""
    log = folder / f"log-{forked}"
    command = [standby.python, *arguments]
    environment = {**ENVIRONMENT, **JOB}
    adopt_orphans()  # a fixture takes it back after each test
    standby.wait_ready()
    worker = WorkerProcess(command, str(folder), environment, log, standby=standby.manager if forked else None)
    assert is_forked(worker.pid) == forked, standby.said
    wait_until(worker.is_warm, PATIENCE, "the worker")
    worker.go({"PLACE": "1"})
    wait_until(lambda: worker.poll() is not None, PATIENCE, "its end")
    worker.close()
    said = log.read_text().splitlines(keepends=True)
    return "".join(line for line in said if not line.startswith("worker_bootstrap: ")), worker.poll()


def plain(standby: Kept, folder: Path, arguments: list[str]) -> tuple[str, int]:
    """What an interpreter prints that is started with the command, and its exit status."""
    ended = subprocess.run(
        [standby.python, *arguments],
        cwd=folder,
        env={**ENVIRONMENT, **JOB, "PLACE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        check=False,
    )
    return ended.stdout, ended.returncode


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {name: (one.get(name), other.get(name)) for name in {*one, *other} if one.get(name) != other.get(name)}


WAYS = [
    ["train.py", "a", "-b"],
    ["./sub/../train.py"],
    ["-m", "package.train", "x"],
    ["-m", "package"],
    ["folder", "y"],
]


@pytest.mark.parametrize("forked", [True, False], ids=["forked", "started"])
@pytest.mark.parametrize("arguments", WAYS, ids=" ".join)
def test_a_worker_is_like_an_interpreter_that_was_started_with_the_command(
    standby: Kept, tmp_path: Path, forked: bool, arguments: list[str]
) -> None:
    for name in ("package", "folder", "sub"):
        (tmp_path / name).mkdir()
    for file in ("train.py", "package/train.py", "package/__main__.py", "folder/__main__.py"):
        (tmp_path / file).write_text(LOOK)
    (tmp_path / "package/__init__.py").write_text("")
    wanted = json.loads(plain(standby, tmp_path, arguments)[0])
    found = json.loads(run(standby, tmp_path, arguments, forked=forked)[0])
    assert differences(wanted, found) == {}
    assert Path(found["file"]).is_absolute()


@pytest.mark.parametrize("forked", [True, False], ids=["forked", "started"])
@pytest.mark.parametrize("arguments", [["train.py"], ["-m", "train"]], ids=" ".join)
def test_processes_that_a_worker_spawns_find_its_script(
    standby: Kept, tmp_path: Path, forked: bool, arguments: list[str]
) -> None:
    (tmp_path / "train.py").write_text(SPAWN)
    assert run(standby, tmp_path, arguments, forked=forked) == (
        "spawn from the process\nforkserver from the process\n",
        0,
    )


ENDS = {
    "an error": "def f():\n    raise ValueError('label 17')\n\nf()",
    "an error behind another": "try:\n    1 / 0\nexcept Exception as e:\n    raise KeyError('b') from e",
    "a mistake": "x = (",
    "a text": "import sys\nsys.exit('no such data set')",
    "a number": "raise SystemExit(3)",
    "a hook": "import sys\nsys.excepthook = lambda *a: print('mine', a[0].__name__)\nraise OSError",
    "a thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=list(ENDS))
def test_a_worker_ends_and_shows_errors_as_the_interpreter_does(standby: Kept, tmp_path: Path, end: str) -> None:
    (tmp_path / "train.py").write_text(end)
    wanted = plain(standby, tmp_path, ["train.py"])
    assert run(standby, tmp_path, ["train.py"], forked=True) == wanted
    assert run(standby, tmp_path, ["train.py"], forked=False) == wanted


def test_a_script_that_is_not_there_is_named(standby: Kept, tmp_path: Path) -> None:
    wanted = plain(standby, tmp_path, ["nothing.py"])
    assert wanted[1] == 2
    assert run(standby, tmp_path, ["nothing.py"], forked=False) == wanted


def test_nothing_of_the_script_or_its_package_runs_before_its_place_is_known(standby: Kept, tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("import os\nprint('package', os.environ.get('RANK'), flush=True)\n")
    (package / "places.py").write_text("import os\nRANK = os.environ.get('RANK')\n")
    (package / "train.py").write_text("from package.places import RANK\nprint('script', RANK, flush=True)\n")
    log = tmp_path / "log"
    worker = WorkerProcess([standby.python, "-m", "package.train"], str(tmp_path), {**ENVIRONMENT, **JOB}, log)
    wait_until(worker.is_warm, PATIENCE, "the worker")
    before = log.read_text()
    worker.prepare({"RANK": "1"})
    wait_until(worker.is_prepared, PATIENCE, "the worker to prepare")
    prepared = log.read_text()
    assert not worker.started
    worker.go({"RANK": "1"})
    wait_until(lambda: worker.poll() is not None, PATIENCE, "its end")
    worker.close()
    assert "package" not in before + prepared
    assert log.read_text().endswith("package 1\nscript 1\n")


HEAD = '''"""Text."""
from __future__ import annotations
import json.tool
import first_library as library
print("the script runs", flush=True)
import second_library
'''


def test_a_worker_with_a_promised_place_imports_the_head_of_its_script_and_no_more(
    standby: Kept, tmp_path: Path
) -> None:
    """What a script imports after its first other line may need what that line sets."""
    site = Path(standby.python).parent.parent / "lib"
    packages = next(site.glob("python*/site-packages"))
    for name in ("first_library", "second_library"):
        (packages / f"{name}.py").write_text(f"import os\nprint('{name}', os.environ.get('RANK'), flush=True)\n")
    (tmp_path / "train.py").write_text(HEAD)
    log = tmp_path / "log"
    worker = WorkerProcess(
        [standby.python, "train.py"], str(tmp_path), {**ENVIRONMENT, **JOB, "MALLETRAIN_BACKEND": "torchrun"}, log
    )
    wait_until(worker.is_warm, PATIENCE, "the worker")
    worker.prepare({"RANK": "2"})
    wait_until(worker.is_prepared, PATIENCE, "the worker to prepare")
    said = [line for line in log.read_text().splitlines() if not line.startswith("worker_bootstrap: ")]
    worker.go({"RANK": "2"})
    wait_until(lambda: worker.poll() is not None, PATIENCE, "its end")
    worker.close()
    for name in ("first_library", "second_library"):
        (packages / f"{name}.py").unlink()
    assert said == ["first_library 2"]
    assert log.read_text().splitlines()[-2:] == ["the script runs", "second_library 2"]


def test_a_module_is_found_without_importing_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "some_package" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "some_package" / "__init__.py").write_text("raise OSError\n")
    (package / "__main__.py").write_text("")
    (package / "train.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert script_of("module", "some_package.inner.train") == package / "train.py"
    assert script_of("module", "some_package.inner") == package / "__main__.py"
    assert script_of("module", "some_package.nothing") is None
    assert script_of("module", "some_package..train") is None


WATCH = """
import importlib, json, os, sys
PLACE = ("RANK", "WORLD_SIZE", "MASTER_", "HOROVOD_", "LOCAL_", "GROUP_", "OMPI_", "PMI", "SLURM_", "JSM_", "MV2_")
read = set()
kind = type(os.environ)
ask = kind.__getitem__
def note(own, name):
    read.add(name)
    return ask(own, name)
kind.__getitem__ = note
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(sorted(name for name in read if name.startswith(PLACE))))
"""
WATCHED = {
    "torch": ["torch", "torch._dynamo", "torch.distributed", "torch.nn.parallel", "torch.utils.data"],
    "horovod": ["horovod.torch"],
    "numpy": ["numpy", "numpy.random"],
    "scipy": ["scipy", "scipy.stats"],
    "sklearn": ["sklearn", "sklearn.datasets"],
}


def asked_for_a_place(names: list[str]) -> list[str]:
    """Variables of a place that modules ask for when they are imported, in Python's environment."""
    done = subprocess.run([sys.executable, "-c", WATCH, *names], capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_what_is_imported_before_the_place_is_known_does_not_ask_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert WATCHED.keys() == INDIFFERENT
    assert asked_for_a_place([name for names in WATCHED.values() for name in names]) == []
    (tmp_path / "asks.py").write_text("import os\nRANK = os.getenv('LOCAL_RANK', -1)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert asked_for_a_place(["asks"]) == ["LOCAL_RANK"]
