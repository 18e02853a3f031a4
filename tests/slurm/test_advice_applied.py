"""`malletrain advise --apply` on a real Slurm: jobs change their places, start, and get their nice values back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.cli.simulate.advice_rounds import apply_changes, ask_priorities
from malletrain.cli.simulate.change_record import open_record
from malletrain.cli.simulate.reordering import ChangeKind, NiceChange, Reordering
from malletrain.runtime.clock import SystemClock
from malletrain.scavenger.sources.schedulers.settings import SlurmSettings
from tests.slurm.cluster import Cluster, cluster, missing
from tests.support.everybody import folder_of_everybody
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

SECONDS = 60.0
SLEEP = "exec sleep 600"
ORDINARY = "www-data"


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    if reason := missing():
        pytest.skip(reason)
    with folder_of_everybody() as folder, cluster(folder / "slurm", 4) as found:
        yield found


@pytest.fixture
def slurm(running: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    yield running
    if found := [job for job, _, _ in running.jobs()]:
        running.run("scancel", *found)
    wait_until(lambda: not running.jobs(), SECONDS, "the end of all jobs")


def state(slurm: Cluster, job: str) -> str:
    return next((state for found, state, _ in slurm.jobs() if found == job), "gone")


def told(slurm: Cluster, job: str) -> tuple[int, int]:
    """Its priority and nice value."""
    words = slurm.run("squeue", "-h", "-r", "-j", job, "-O", "PriorityLong:0|,Nice:0").strip().split("|")
    return int(words[0]), int(words[1])


def waiting(slurm: Cluster) -> tuple[str, str, str, str]:
    """Three nodes are idle, since the first of the queue waits for the fourth.

    Returns:
        The head, which wants all four; a job and a task of an array that would fit; one that wants the taken node.
    """
    blocker = slurm.submit(1, SLEEP, "--time=60", "--nodelist=n001")
    wait_until(lambda: state(slurm, blocker) == "RUNNING", SECONDS, "the job that takes a node")
    head = slurm.submit(4, SLEEP, "--time=60")
    wait_until(lambda: "Resources" in slurm.run("squeue", "-h", "-j", head, "-o", "%r"), SECONDS, "the head to wait")
    pair = slurm.submit(2, SLEEP, "--time=120", '--job-name=x" JobId=1 Nice=0; touch /tmp/hostile\n$(id)')
    task = slurm.submit(1, SLEEP, "--time=120", "--array=5")
    bound = slurm.submit(1, SLEEP, "--time=120", "--nodelist=n001")
    wait_until(lambda: sum("PENDING" in state for _, state, _ in slurm.jobs()) == 4, SECONDS, "four jobs that wait")
    return head, pair, f"{task}_5", bound


def advise(record: Path, *options: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "malletrain.cli.main", "advise", "--source", "slurm", "--partition", "main"]
    return subprocess.run(
        [*command, "--record", str(record), *options],
        input=text,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        cwd="/",
        check=False,
    )


def test_the_selection_starts_before_the_head_and_all_is_noted(slurm: Cluster, tmp_path: Path) -> None:
    head, pair, task, _ = waiting(slurm)
    record = tmp_path / "changes.jsonl"
    shown = advise(record, "--apply", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert f"scontrol update JobId={pair} Nice=-" in shown.stdout
    assert f"scontrol update JobId={task} Nice=-" in shown.stdout
    assert record.read_text() == ""
    assert told(slurm, pair)[1] == 0
    nobody = advise(record, "--apply")
    assert nobody.returncode != 0
    assert "--yes or --dry-run" in nobody.stderr

    done = advise(record, "--apply", "--yes")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: state(slurm, pair) == "RUNNING", SECONDS, "the selected job")
    wait_until(lambda: state(slurm, task) == "RUNNING", SECONDS, "the selected task")
    assert state(slurm, head) == "PENDING"
    assert told(slurm, head)[1] == 0
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert {line["job"] for line in lines if line["event"] == "change"} == {pair, task}
    assert all(line["niceBefore"] <= 0 and line["niceAfter"] < 0 for line in lines if line["event"] == "change")
    assert next(job for line in lines if line["event"] == "round" for job, _ in line["passedOver"]) == head
    assert not Path("/tmp/hostile").exists()

    back = advise(record, "--undo", "--yes")
    assert "2 jobs that were raised wait no longer" in back.stdout


def test_what_still_waits_gets_its_nice_value_back(slurm: Cluster, tmp_path: Path) -> None:
    *others, bound = waiting(slurm)
    slurm.run("scancel", *others[1:])  # the selection is the job whose node is taken
    wait_until(lambda: len(slurm.jobs()) == 3, SECONDS, "the others to be gone")
    slurm.run("scontrol", "update", f"JobId={bound}", "Nice=7")
    record = tmp_path / "changes.jsonl"
    done = advise(record, "--apply", "--yes", "--rounds", "2", "--every", "1")
    assert done.returncode == 0, done.stderr
    assert told(slurm, bound)[0] > told(slurm, others[0])[0], done.stdout
    assert "the selected jobs are first already" in done.stdout  # by the second round
    back = advise(record, "--undo", "--yes")
    assert back.returncode == 0, back.stderr
    assert told(slurm, bound)[1] == 7
    assert "nothing to take back" in advise(record, "--undo", "--yes").stdout


async def test_jobs_that_left_or_changed_since_are_skipped(slurm: Cluster, tmp_path: Path) -> None:
    _, pair, task, bound = waiting(slurm)
    section = SlurmSettings()
    now = await ask_priorities(section, partitions=("main",))
    changes = tuple(
        NiceChange(ChangeKind.RAISE, job, now[job].submitted, 0, -50, now[job].priority) for job in (pair, task, bound)
    )
    slurm.run("scancel", pair)
    slurm.run("scontrol", "update", f"JobId={task}", "Nice=9")
    with open_record(tmp_path / "changes.jsonl", SystemClock()) as record:
        made = await apply_changes(section, Reordering(changes), record)
    assert made[0].skipped in ("it waits no longer (CA)", "it is gone")
    assert made[1].skipped == "its nice value was changed meanwhile, from 0 to 9"
    assert (made[2].skipped, told(slurm, bound)[1]) == ("", -50)
    assert told(slurm, task)[1] == 9


async def test_a_priority_that_an_administrator_set_is_told(slurm: Cluster, tmp_path: Path) -> None:
    _, pair, _, _ = waiting(slurm)
    slurm.run("scontrol", "update", f"JobId={pair}", "Priority=2")
    section = SlurmSettings()
    now = await ask_priorities(section, partitions=("main",))
    change = NiceChange(ChangeKind.RAISE, pair, now[pair].submitted, 0, -50, now[pair].priority, 51)
    with open_record(tmp_path / "changes.jsonl", SystemClock()) as record:
        made = await apply_changes(section, Reordering((change,)), record)
        assert made[0].skipped == "Slurm ignores it: somebody has set the job's priority itself"
        assert record.read().standing == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another account")
async def test_slurm_refuses_who_is_no_operator(slurm: Cluster, tmp_path: Path) -> None:
    _, pair, task, _ = waiting(slurm)
    ordinary = tmp_path / "scontrol"
    real = shutil.which("scontrol")
    ordinary.write_text(
        f'#!/bin/sh\nexec setpriv --reuid={ORDINARY} --regid={ORDINARY} --clear-groups {real} "$@"\n', encoding="utf-8"
    )
    ordinary.chmod(0o755)
    section = SlurmSettings(scontrol=str(ordinary))
    now = await ask_priorities(section, partitions=("main",))
    changes = tuple(
        NiceChange(ChangeKind.RAISE, job, now[job].submitted, 0, -50, now[job].priority) for job in (pair, task)
    )
    with open_record(tmp_path / "changes.jsonl", SystemClock()) as record:
        made = await apply_changes(section, Reordering(changes), record)
        assert [one.refused for one in made] == [True]
        assert record.read().standing == {}
    assert told(slurm, pair)[1] == 0
