"""A real `malletrain up`, used by two users, a viewer and an operator through the command with their tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from malletrain.runtime.access.installation import own_user
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.system, pytest.mark.long]

SETTINGS = """
[scavenger]
source = "static"
nodes = ["n1", "n2"]
debounce_seconds = 0
[job_manager]
backend = "command"
max_jobs_per_owner = 4
[access]
munge = "off"
"""
TRAINER = """
import itertools, os, time
from malletrain.client import report
print("the secret has", len(os.environ["API_TOKEN"]), "characters", flush=True)
for _ in itertools.count():
    time.sleep(0.02)
    report(32)
"""


@dataclass
class Person:
    """Somebody who types `malletrain` with a token."""

    system: Deployment
    token: str

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLETRAIN_")}
        return subprocess.run(
            [sys.executable, "-m", "malletrain.cli.main", *arguments],
            cwd=self.system.folder,
            env=environment | {"MALLETRAIN_TOKEN": self.token, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def output(self, *arguments: str) -> str:
        done = self.command(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.output(*arguments, "--json"))

    def refusal(self, *arguments: str) -> str:
        done = self.command(*arguments)
        assert done.returncode == 1, done.stdout
        return done.stderr

    def submit(self, folder: Path, *options: str) -> str:
        words = ("submit", "--max", "1", *options, "--", sys.executable, str(folder / "loop.py"))
        return self.output(*words).split()[0]


@pytest.fixture
def system(tmp_path: Path) -> Iterator[Deployment]:
    with deployed(tmp_path / "state", SETTINGS) as deployment:
        (deployment.folder / "loop.py").write_text(TRAINER)
        yield deployment


def person(system: Deployment, user: str, role: str) -> Person:
    done = system.command("token", "--user", user, "--role", role, "--lifespan", "10m")
    assert done.returncode == 0, done.stderr
    return Person(system, done.stdout.strip())


def test_what_is_whose(system: Deployment) -> None:
    ada, bob = person(system, "ada", "user"), person(system, "bob", "user")
    vera, olga = person(system, "vera", "viewer"), person(system, "olga", "operator")
    secret = ("--env", "API_TOKEN=hunter2", "--family", "resnet")
    job = ada.submit(system.folder, *secret)
    assert "owner" not in ada.output("jobs"), "there is only one"
    of_bob = bob.submit(system.folder, "--env", "API_TOKEN=swordfish")
    wait_until(lambda: "the secret has 7 characters" in ada.output("logs", job), 60, "the trainer with its secret")

    listing = vera.output("jobs")
    assert "owner" in listing
    assert {"ada", "bob"} <= set(listing.split())
    assert [entry["id"] for entry in ada.json("jobs", "--mine")] == [job]
    assert [entry["id"] for entry in ada.json("jobs", "--owner", "bob")] == [of_bob]

    for whole in (ada, olga):
        entry = whole.json("job", job)
        assert entry["owner"] == "ada"
        assert entry["spec"]["environment"] == {"API_TOKEN": "***"}
        assert entry["spec"]["family"] == "resnet"
        assert all(event["reason"] for event in entry["events"])
        shown = whole.output("job", job)
        assert "loop.py" in shown
        assert "hunter2" not in shown + json.dumps(entry)
    for other in (bob, vera):
        entry = other.json("job", job)
        assert (entry["owner"], entry["spec"]["name"], entry["spec"]["maxNodes"]) == ("ada", "loop", 1)
        assert not {"reason", "metrics"} & entry.keys()
        assert not {"command", "environment", "workingDirectory", "family"} & entry["spec"].keys()
        assert entry["events"]
        assert not any("reason" in event for event in entry["events"])
        assert entry["events"][0]["reasonCode"] == "SUBMITTED"
        shown = other.output("job", job)
        assert "owner  ada" in shown
        assert "command  " not in shown
        assert "loop.py" not in shown
        assert "submitted" in shown
        others = f"job {job} belongs to ada: only its owner and operators may"
        assert f"not permitted: {others} read its log" in other.refusal("logs", job)
    assert f"not permitted: {others} cancel it, and bob has the role user" in bob.refusal("cancel", job)
    assert "CancelJob needs the role user" in vera.refusal("cancel", job)
    assert f"not permitted: {others} have it profiled" in bob.refusal("profile", job)

    assert "belongs" not in bob.output("cancel", of_bob)
    assert olga.output("cancel", job).startswith(job)
    assert "hunter2" not in "".join(path.read_text() for path in (system.folder / "logs").iterdir())


def test_an_owner_has_at_most_so_many_jobs(system: Deployment) -> None:
    eve = person(system, "eve", "user")
    for _ in range(4):
        eve.submit(system.folder, "--env", "API_TOKEN=x")
    refused = eve.refusal("submit", "--max", "1", "--", sys.executable, str(system.folder / "loop.py"))
    assert "eve has 4 jobs that have not ended and submits 1 more: at most 4" in refused
    for entry in eve.json("jobs", "--mine"):
        eve.output("cancel", entry["id"])
    assert eve.submit(system.folder, "--env", "API_TOKEN=x")


def test_the_account_that_runs_the_services_types_nothing_and_owns_its_jobs(system: Deployment) -> None:
    words = ("submit", "--max", "1", "--env", "API_TOKEN=x", "--", sys.executable, str(system.folder / "loop.py"))
    job = system.command(*words).stdout.split()[0]
    assert [entry["id"] for entry in system.json("jobs", "--mine")] == [job]
    assert system.json("job", job)["owner"] == own_user()
