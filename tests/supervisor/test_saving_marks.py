"""Marks of workers for their supervisor, with real processes: which survivors of a loss save, and for how long."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.supervisor.running import Supervised, supervised
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

HOSTS = ("n1", "n2", "n3", "n4")
SCRIPT = Path(__file__).with_name("marking_trainer.py")
# Through a shell: a command that begins with Python would import torch before it starts.
COMMAND = ["/bin/sh", "-c", f"exec '{sys.executable}' '{SCRIPT}'"]
SLOW = "4"
"""Seconds of a save that takes longer than a survivor has which does not show that it saves."""
PATIENCE = 60.0


@contextmanager
def marking(folder: Path, environment: Mapping[str, str]) -> Iterator[tuple[Supervised, dict[int, int]]]:
    """A job of four workers, and their process ids by rank."""
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with supervised(folder, *HOSTS, command=COMMAND, backend="torchrun", environment={**environment, **paths}) as job:
        wait_until(lambda: len(ranks_that(job, "start")) == len(HOSTS), PATIENCE, "four workers")
        yield job, {line["rank"]: line["pid"] for line in job.lines()}


def ranks_that(job: Supervised, event: str, pids: Mapping[int, int] | None = None) -> set[int]:
    """Ranks that have noted something: of these processes, or of all."""
    return {
        line["rank"]
        for line in job.lines()
        if line["event"] == event and (pids is None or line["pid"] == pids[line["rank"]])
    }


def lose(job: Supervised, pids: Mapping[int, int], rank: int) -> None:
    """Kill a worker, and wait for the next generation: all of the present one have ended then."""
    os.kill(pids[rank], signal.SIGKILL)
    wait_until(lambda: {line["pid"] for line in job.lines()} > {*pids.values()}, PATIENCE, "the next generation")


@pytest.mark.parametrize(
    ("sharded", "lost", "asked"),
    [("", 2, {0}), ("", 0, {1}), ("2,3", 1, {0, 2, 3}), ("0,1,2,3", 0, {1, 2, 3}), ("1", 1, {0})],
)
def test_the_lowest_survivor_saves_and_those_with_a_part_that_others_lack(
    tmp_path: Path, sharded: str, lost: int, asked: set[int]
) -> None:
    with marking(tmp_path, {"TEST_SHARDED": sharded}) as (job, pids):
        lose(job, pids, lost)
        assert ranks_that(job, "asked", pids) == asked, job.said
        assert ranks_that(job, "saved", pids) == asked, job.said


def test_a_survivor_that_shows_that_it_saves_gets_the_time_for_itself_and_others(tmp_path: Path) -> None:
    variables = {"TEST_SHARDED": "1,2,3", "TEST_SAVING": "3", "TEST_SAVE_SECONDS": SLOW}
    with marking(tmp_path, variables) as (job, pids):
        lose(job, pids, 1)
        assert ranks_that(job, "saved", pids) == {0, 2, 3}, job.said


def test_survivors_that_do_not_show_that_they_save_are_killed(tmp_path: Path) -> None:
    with marking(tmp_path, {"TEST_SHARDED": "1,2,3", "TEST_SAVE_SECONDS": SLOW}) as (job, pids):
        lose(job, pids, 1)
        assert ranks_that(job, "asked", pids) == {0, 2, 3}, job.said
        assert ranks_that(job, "saved", pids) == set(), job.said


def test_marks_of_processes_that_are_gone_count_for_nothing(tmp_path: Path) -> None:
    for folder in ("saving", "sharded"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1").touch()
    with marking(tmp_path, {"TEST_SAVE_SECONDS": SLOW}) as (job, pids):
        lose(job, pids, 3)
        assert ranks_that(job, "asked", pids) == {0}, job.said
        assert ranks_that(job, "saved", pids) == set(), job.said
