"""Two jobs of one owner share a feed; the one that has started it loses its node, and no sample is lost."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("torch", reason="needs torch")

from tests.client.feed.running import FeedTrainings
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed
from tests.training.accounts import accounts_of, lines_in
from tests.training.trainer_settings import SIZE

pytestmark = [pytest.mark.long, pytest.mark.system, pytest.mark.timeout(400)]
TRAINER = Path(__file__).parents[1] / "client" / "feed" / "elastic_trainer.py"
EPOCHS = 3
SECONDS = 150.0
SETTINGS = f"""
[scavenger]
source = "static"
nodes = ["n1", "n2"]
debounce_seconds = 0
[job_manager]
trainer_python = "{sys.executable}"
"""


@pytest.fixture
def system(tmp_path: Path) -> Iterator[Deployment]:
    with deployed(tmp_path / "state", SETTINGS) as deployment:
        wait_until(lambda: len(deployment.json("nodes")) == 2, 20, "two idle nodes")
        yield deployment


def submit(system: Deployment, feeds: FeedTrainings) -> str:
    variables = {
        "TEST_SAMPLES": EPOCHS * SIZE,
        "TEST_LOG": feeds.folder / "prepared.log",
        "MALLETRAIN_FEED_FOLDER": feeds.feeds,
    }
    environment = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    options = ["--backend", "torchrun", "--min", "1", "--max", "1", "--profile", "never", *environment]
    done = system.command("submit", *options, "--", "python", str(TRAINER))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def received(folder: Path) -> int:
    return max((line["received"] for line in lines_in(folder)), default=0)


def test_a_feed_goes_with_the_node_of_the_job_that_started_it(system: Deployment, tmp_path: Path) -> None:
    feeds = FeedTrainings(tmp_path)
    jobs = [submit(system, feeds) for _ in range(2)]
    folders = {job: system.folder / "jobs" / job for job in jobs}
    for folder in folders.values():
        wait_until(lambda folder=folder: received(folder) > 10, SECONDS, "samples of the feed")
    (feed,) = feeds.feed_processes()
    marks = feed.environ()
    starter, node = marks["MALLETRAIN_JOB_ID"], marks["MALLETRAIN_NODE"]
    (other,) = set(jobs) - {starter}

    assert system.command("drain", node).returncode == 0
    psutil.wait_procs([feed], SECONDS)
    assert not feed.is_running()
    assert system.state(other) == "RUNNING"

    # The other one goes on, with a feed of its own.
    def own() -> list[dict[str, str]]:
        return [found.environ() for found in feeds.feed_processes()]

    (mark,) = wait_until(own, SECONDS, "another feed")
    assert mark["MALLETRAIN_JOB_ID"] == other
    wait_until(lambda: system.state(other) == "COMPLETED", SECONDS, f"the end of {other}")
    assert system.command("resume", node).returncode == 0
    wait_until(lambda: system.state(starter) == "COMPLETED", SECONDS, f"the end of {starter}")
    for folder in folders.values():
        accounts = accounts_of(folder)
        assert accounts.check_epochs() == EPOCHS
        assert accounts.repeated == []
    wait_until(lambda: not feeds.feed_processes(), 30, "the end of the feeds")
