"""Services are forks of one process that has imported them: children of `up`, which nobody misses when it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from malletrain.cli.operate.service_forks import TITLE
from malletrain.common.processes import read_arguments
from malletrain.runtime.settings_file import SERVICES
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = pytest.mark.system

STATIC = '[scavenger]\nsource = "static"\nnodes = ["n1"]\n'
WORDS = "-P -m malletrain.cli.main serve {} --parent {}"


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("up"), STATIC) as deployment:
        yield deployment


def forks(system: Deployment) -> list[psutil.Process]:
    """The program that forks services, while it runs."""
    children = psutil.Process(system.process.pid).children()
    return [child for child in children if read_arguments(child.pid)[:1] == [TITLE]]  # one that has ended has none


def has_mapped(pid: int, name: str) -> bool:
    return name in Path(f"/proc/{pid}/maps").read_text()


def test_services_are_children_of_up_with_their_own_command_lines_and_logs(system: Deployment) -> None:
    (program,) = forks(system)
    assert program.num_threads() == 1
    for name, pid in system.pids().items():
        service = psutil.Process(pid)
        assert (service.ppid(), service.children()) == (system.process.pid, [])
        words = " ".join(word for word in service.cmdline()[1:] if word)
        assert words == WORDS.format(name, system.process.pid)
        log = system.folder / "logs" / f"{name}.log"
        for descriptor in (1, 2):
            assert Path(os.readlink(f"/proc/{pid}/fd/{descriptor}")).samefile(log)  # noqa: PTH115
        assert os.readlink(f"/proc/{pid}/fd/0") == os.devnull  # noqa: PTH115
        assert signal.SIGINT not in ignored(pid), "Ctrl-C"


def test_who_releases_nodes_comes_before_who_plans_and_who_counts(system: Deployment) -> None:
    """On a busy head node a release must wait neither for a solve nor for reports."""
    nice = {name: psutil.Process(pid).nice() for name, pid in system.pids().items()}
    own = psutil.Process(system.process.pid).nice()
    assert nice["scavenger"] == nice["job_manager"] == own
    assert own < nice["allocator"] < nice["monitor"] == nice["profiler"] <= 19


def ignored(pid: int) -> set[int]:
    """Signals that a process ignores."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(next(line for line in status.splitlines() if line.startswith("SigIgn")).split()[1], 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def test_what_one_service_needs_is_in_the_memory_of_all(system: Deployment) -> None:
    """It is only imported once: the Scavenger has mapped the solver, which it would never import."""
    assert all(has_mapped(pid, "highspy") for pid in system.pids().values())


def test_services_go_on_without_the_program_and_the_next_start_has_a_new_one(system: Deployment) -> None:
    (program,) = forks(system)
    before = system.pids()
    program.kill()
    wait_until(lambda: not forks(system), 20, "its end")
    assert system.pids() == before
    os.kill(before["profiler"], signal.SIGKILL)
    wait_until(lambda: system.pids().get("profiler", before["profiler"]) != before["profiler"], 60, "a new Profiler")
    wait_until(lambda: system.command("health").returncode == 0, 60, "all services to serve")
    (second,) = forks(system)
    assert second.pid != program.pid
    os.kill(system.pids()["monitor"], signal.SIGKILL)
    wait_until(lambda: system.pids().get("monitor", before["monitor"]) != before["monitor"], 60, "a new Monitor")
    assert has_mapped(system.pids()["monitor"], "highspy"), "it is of the new program"
    before = {name: pid for name, pid in before.items() if name != "monitor"}
    assert {name: system.pids()[name] for name in before if name != "profiler"} == {
        name: pid for name, pid in before.items() if name != "profiler"
    }


def test_program_and_services_end_with_an_up_that_was_killed(tmp_path: Path) -> None:
    with deployed(tmp_path, STATIC) as system:
        processes = [psutil.Process(pid) for pid in system.pids().values()] + forks(system)
        assert len(processes) == len(SERVICES) + 1
        system.process.kill()
        wait_until(lambda: not any(map(runs, processes)), 60, "the end of all")


def runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


A_THREAD = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
NO_ROOM = """
import os
first, fork = os.getpid(), os.fork

def fails_in_children() -> int:
    if os.getpid() != first:
        raise BlockingIOError(11, "no room")
    return fork()

os.fork = fails_in_children
"""


@pytest.mark.parametrize("library", [A_THREAD, NO_ROOM], ids=["a library has begun a thread", "no room for a task"])
def test_where_the_program_can_not_fork_services_are_processes_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "sitecustomize.py").write_text(library)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "library"))
    (tmp_path / "up").mkdir()
    with deployed(tmp_path / "up", STATIC) as system:
        assert set(system.pids()) == set(SERVICES)
        assert not has_mapped(system.pids()["scavenger"], "highspy")
        said = (system.folder / "up.log").read_text()
        assert said.count("no shared memory for a service") == 1
