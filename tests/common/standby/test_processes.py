"""Standby processes of several interpreters on one machine, within one limit of memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from malletrain.common.orphans import adopt_orphans
from malletrain.common.standby.config import StandbyConfig
from malletrain.common.standby.processes import StandbyProcesses
from malletrain.common.worker_process import WorkerProcess
from tests.common.standby.keeping import ENVIRONMENT, JOB, PATIENCE, Clock, is_forked, small_environment
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes


class Shelved:
    """A standbys, what it has said, and its clock."""

    def __init__(self, memory_bytes: int) -> None:
        adopt_orphans()
        self.clock, self.said = Clock(), list[str]()
        self.standbys = StandbyProcesses(memory_bytes, self.said.append, self.clock)
        self.forks = self.standbys.of(None)

    def tick(self) -> None:
        self.standbys.tick(busy=False)

    def is_worth_waiting(self, python: str, folder: Path, environment: Mapping[str, str]) -> bool:
        self.tick()
        return self.forks.is_worth_waiting([python, "script.py"], str(folder), {**environment, **JOB})

    def start(self, python: str, folder: Path, environment: Mapping[str, str] = ENVIRONMENT) -> tuple[bool, str]:
        """Whether a worker that waits as long as it is worth that is forked, and what it prints."""
        (folder / "log").unlink(missing_ok=True)
        wait_until(lambda: not self.is_worth_waiting(python, folder, environment), PATIENCE, f"a standby ({self.said})")
        worker = WorkerProcess(
            [python, "script.py"], str(folder), {**environment, **JOB}, folder / "log", standby=self.forks
        )
        wait_until(worker.is_warm, PATIENCE, "the worker")
        forked = is_forked(worker.pid)
        worker.go({})
        wait_until(lambda: worker.poll() is not None, PATIENCE, "its end")
        worker.close()
        lines = (folder / "log").read_text().splitlines()
        return forked, "".join(line for line in lines if not line.startswith("worker_bootstrap: "))


@contextmanager
def shelved(memory_bytes: int = 2 << 30) -> Iterator[Shelved]:
    found = Shelved(memory_bytes)
    try:
        yield found
    finally:
        found.standbys.close()


@pytest.fixture
def two(tmp_path: Path) -> tuple[tuple[StandbyConfig, Path], tuple[StandbyConfig, Path]]:
    """Two virtual environments without packages, each with its folder for packages."""
    (tmp_path / "script.py").write_text("import os, sys\nprint(sys.prefix, os.environ.get('OMP_NUM_THREADS'))\n")
    return small_environment(tmp_path / "one"), small_environment(tmp_path / "other")


def test_two_environments_in_turn_each_keep_a_standby_process(
    tmp_path: Path, two: tuple[tuple[StandbyConfig, Path], tuple[StandbyConfig, Path]]
) -> None:
    pythons = [config.interpreter for config, _ in two]
    with shelved() as running:
        for _ in range(3):
            for python, name in zip(pythons, ("one", "other"), strict=True):
                assert running.start(python, tmp_path) == (True, f"{tmp_path / name} 1"), running.said
            pids = running.standbys.pids
            assert len(pids) == 2
        three = {**ENVIRONMENT, "OMP_NUM_THREADS": "3"}
        assert running.start(pythons[0], tmp_path, three) == (True, f"{tmp_path / 'one'} 3")
        assert running.start(pythons[0], tmp_path) == (True, f"{tmp_path / 'one'} 1")
        assert pids < running.standbys.pids, "values that a library reads by itself have one of their own"
        assert len(running.standbys.pids) == 3


def test_a_variable_that_was_read_ahead_has_a_standby_process_of_its_own(
    tmp_path: Path, two: tuple[tuple[StandbyConfig, Path], tuple[StandbyConfig, Path]]
) -> None:
    config, packages = two[0]
    (packages / "reads.py").write_text("import os\nVALUE = os.environ.get('READ_AT_IMPORT')\n")
    (tmp_path / "script.py").write_text("import reads\nprint(reads.VALUE)\n")
    other = {**ENVIRONMENT, "READ_AT_IMPORT": "x"}
    with shelved() as running:
        assert running.standbys.open(None, StandbyConfig(config.interpreter, ENVIRONMENT, ("reads",)))
        assert running.start(config.interpreter, tmp_path) == (True, "None")
        assert running.start(config.interpreter, tmp_path, other) == (False, "x"), "it showed what matters"
        for _ in range(2):
            assert running.start(config.interpreter, tmp_path, other) == (True, "x"), running.said
            assert running.start(config.interpreter, tmp_path) == (True, "None"), running.said
        assert len(running.standbys.pids) == 2


def test_the_one_that_was_used_least_recently_is_ended_for_another(
    tmp_path: Path, two: tuple[tuple[StandbyConfig, Path], tuple[StandbyConfig, Path]]
) -> None:
    one, other = (config.interpreter for config, _ in two)
    with shelved() as measured:
        assert measured.start(one, tmp_path)[0]
        alone = measured.standbys.memory_used()
    with shelved(alone + alone // 2) as running:
        assert running.start(one, tmp_path)[0]
        (first,) = running.standbys.pids
        assert running.start(other, tmp_path) == (False, f"{tmp_path / 'other'} 1"), "the first was used just now"
        assert running.said[-1].endswith("there is no memory for another standby process")
        running.clock.now += 30.1
        assert running.start(other, tmp_path)[0], running.said
        (second,) = running.standbys.pids
        assert first != second
        assert f"standby process {first} is ended: others need its memory" in running.said


def test_too_much_memory_is_noticed_later_too(
    tmp_path: Path, two: tuple[tuple[StandbyConfig, Path], tuple[StandbyConfig, Path]]
) -> None:
    one, other = (config.interpreter for config, _ in two)
    with shelved() as running:
        assert running.start(one, tmp_path)[0]
        older = running.standbys.pids
        running.clock.now += 1
        assert running.start(other, tmp_path)[0]
        (newer,) = running.standbys.pids - older
        running.standbys.memory_bytes = running.standbys.memory_used() * 3 // 4
        running.clock.now += 10.1
        running.tick()
        assert running.standbys.pids == {newer}


def test_commands_that_can_not_be_forked_open_nothing(tmp_path: Path) -> None:
    with shelved() as running:
        assert not running.is_worth_waiting("/bin/sh", tmp_path, ENVIRONMENT)
        assert running.forks.fork(["/bin/sh", "x"], str(tmp_path), ENVIRONMENT, 1, (1, 1)) is None
        assert "started as a new interpreter" in running.said[-1]
        assert running.standbys.pids == set()
        running.standbys.kill()
        assert not running.is_worth_waiting("/usr/bin/python3", tmp_path, ENVIRONMENT)
        said = len(running.said)
        assert running.forks.fork(["/usr/bin/python3", "x"], str(tmp_path), ENVIRONMENT, 1, (1, 1)) is None
        assert len(running.said) == said, "nothing is said where there are none"
