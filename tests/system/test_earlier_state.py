"""A state folder that an earlier version left behind, its processes all killed, opens with this one.

`state_0_1_0` holds the tables of the five services as SQL, made by version 0.1.0 on four static nodes: jobs that were
cancelled, had failed, trained, waited for nodes and waited in the queue; two nodes were kept back after failures (their
time has been set to the year 2286). All processes were killed at that moment.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from malletrain.runtime.access.installation import own_user
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = pytest.mark.system

SAVED = Path(__file__).with_name("state_0_1_0")
SETTINGS = """
[scavenger]
source = "static"
nodes = ["n1", "n2", "n3", "n4", "n5", "n6"]
debounce_seconds = 0
[job_manager]
max_parallel = 2
backend = "command"
"""
TRAINER = """
import itertools, time
from malletrain.client import report
for _ in itertools.count():
    time.sleep(0.02)
    report(32)
"""


def restore(folder: Path) -> None:
    """Lay the saved state into a folder, with commands that exist on this machine."""
    (folder / "loop.py").write_text(TRAINER)
    for dump in SAVED.glob("*.sql"):
        text = dump.read_text().replace("/usr/bin/python3", sys.executable).replace("/srv/example", str(folder))
        connection = sqlite3.connect(folder / f"{dump.stem}.sqlite")
        connection.executescript(text)
        connection.close()
    shutil.copy(SAVED / "scavenger-holds.json", folder)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("earlier")
    restore(folder)
    with deployed(folder, SETTINGS) as deployment:
        yield deployment


def jobs_by_name(system: Deployment) -> dict[str, Any]:
    return {job["spec"]["name"]: job for job in system.json("jobs")}


def test_every_job_is_where_it_was(system: Deployment) -> None:
    jobs = jobs_by_name(system)
    assert jobs["finished"]["state"] == "CANCELLED"
    assert jobs["fails"]["state"] == "FAILED"
    assert "exit status 3" in jobs["fails"]["reason"]
    assert jobs["cancelled"]["state"] == "CANCELLED"
    assert jobs["queued"]["state"] == "QUEUED"
    assert jobs["queued"]["spec"]["permittedNodes"] == [1, 2]
    assert jobs["trains-on"]["spec"]["environment"] == {"GREETING": "hello"}


def test_an_ended_job_gets_the_samples_that_only_monitor_had_stored(system: Deployment) -> None:
    """JobManager had stored 146,848 of it."""
    wait_until(lambda: jobs_by_name(system)["finished"]["samples"] == 146912, 20, "the samples that Monitor knows")


def test_jobs_of_the_time_before_owners_belong_to_the_account_that_runs_the_services(system: Deployment) -> None:
    jobs = system.json("jobs")
    assert {job["owner"] for job in jobs} == {own_user()}
    assert [job["id"] for job in system.json("jobs", "--mine")] == [job["id"] for job in jobs]
    assert system.json("jobs", "--owner", "somebody-else") == []


def test_what_was_training_goes_on_and_what_waited_begins(system: Deployment) -> None:
    def both_train() -> bool:
        jobs = jobs_by_name(system)
        return all(jobs[name]["state"] == "RUNNING" for name in ("trains-on", "second"))

    wait_until(both_train, 60, "both admitted jobs training")
    counts: list[int] = []

    def has_grown() -> bool:
        counts.append(int(jobs_by_name(system)["trains-on"]["samples"]))
        return any(earlier < later for earlier, later in pairwise(counts))

    # Not more than at first: it saves nothing, so that Monitor counts what it had trained as lost once it begins anew.
    wait_until(has_grown, 30, "progress of the older job")


def test_the_journal_and_the_measured_curve_are_still_known(system: Deployment) -> None:
    history = json.dumps(system.json("job", "j000003"))
    assert "STARTING" in history
    # The Profiler may not have heard of Monitor yet.
    wait_until(lambda: "MEASURED" in system.command("curve", "j000003", "--json").stdout, 60, "the measured curve")


def test_plans_count_on(system: Deployment) -> None:
    wait_until(lambda: int(system.json("plan")["generation"]) > 12, 30, "a plan after the twelve that were saved")


def test_nodes_that_were_kept_back_still_are(system: Deployment) -> None:
    assert {node["name"] for node in system.json("nodes")} == {"n3", "n4", "n5", "n6"}
