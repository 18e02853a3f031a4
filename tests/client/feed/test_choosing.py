"""Real feeds that choose how many processes prepare samples, and trainings that get what a fixed number gives them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("torch", reason="needs torch")

from malletrain.client.feeding.sizing import usable_cores
from tests.client.feed.running import ENDLESS, PATIENCE, SIZE, FeedTrainings
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(240),
    pytest.mark.skipif(usable_cores() < 2, reason="needs two processor cores"),
]
COSTLY = {"workers": None, "pause": 0.01, "until": ENDLESS}
"""A sample takes 10 ms, and nobody has said how many processes are to prepare."""
LIMITS = {"samples": ENDLESS, "linger_seconds": 0.5, "calm_seconds": 2.0}


@pytest.fixture
def trainings(tmp_path: Path) -> Iterator[FeedTrainings]:
    running = FeedTrainings(tmp_path)
    yield running
    running.close()


def wait_processes(feed: psutil.Process, least: int, most: int) -> None:
    wait_until(lambda: least <= len(feed.children()) <= most, PATIENCE, f"{least} to {most} processes of the feed")


def test_a_feed_begins_with_one_process_and_grows_while_trainings_wait(trainings: FeedTrainings) -> None:
    for name, batch in (("one", 4), ("two", 6)):
        trainings.start(name, **COSTLY | {"batch": batch, "until": 24 * SIZE}, limits=LIMITS)
    feed = trainings.wait_feed()
    wait_processes(feed, 2, usable_cores())
    trainings.wait("one", "two")
    log = (trainings.feeds / "feed.log").read_text()
    first = log.splitlines()[0]
    assert "processes prepare samples, before 1; trainings could take" in first

    # Bit by bit what trainings get that prepare their samples themselves, and each sample was prepared once.
    trainings.check_complete("one", "two")
    before = sum(trainings.prepared().values())
    assert before == max(line["first"] + len(line["indices"]) for n in ("one", "two") for line in trainings.lines(n))
    for name, batch in (("one", 4), ("two", 6)):
        trainings.start(f"{name} alone", feed="", workers=0, batch=batch, until=24 * SIZE)
        trainings.wait(f"{name} alone")
        own, shared = trainings.lines(f"{name} alone"), trainings.lines(name)
        assert [(line["indices"], line["loss"]) for line in own] == [(line["indices"], line["loss"]) for line in shared]
        assert shared[-1]["prepared"] == 0, trainings.log(name)


def test_a_number_that_was_given_stays(trainings: FeedTrainings) -> None:
    trainings.start("one", **COSTLY | {"workers": 1, "until": 8 * SIZE}, limits=LIMITS)
    feed = trainings.wait_feed()
    found = set()
    while trainings.processes["one"].is_alive():
        with contextlib.suppress(psutil.Error):
            found.add(len(feed.children()))
        trainings.processes["one"].join(0.1)
    trainings.check_complete("one")
    assert found <= {0, 1}
    assert 1 in found
    assert (trainings.feeds / "feed.log").read_text() == ""


def test_a_feed_is_killed_while_it_starts_processes(trainings: FeedTrainings) -> None:
    for name, batch in (("one", 4), ("other", 5)):
        trainings.start(name, **COSTLY, batch=batch, patience=2.0, limits=LIMITS)
    feed = trainings.wait_feed()
    wait_processes(feed, 2, usable_cores())
    children = feed.children()
    feed.kill()
    psutil.wait_procs(children, 10)
    assert not any(child.is_running() for child in children)
    trainings.wait_received("one", "other", more=100)
    wait_processes(trainings.wait_feed(), 2, usable_cores())
    trainings.stop("one", "other")
    for name in ("one", "other"):
        trainings.check_exact(name)


def test_fewer_processes_prepare_once_a_slow_training_sets_the_pace(trainings: FeedTrainings) -> None:
    trainings.start("fast", **COSTLY, limits=LIMITS)
    feed = trainings.wait_feed()
    wait_processes(feed, 2, usable_cores())
    trainings.wait_batches("fast", 20)
    at = trainings.lines("fast")[-1]["first"]
    # 10 samples/s, of which one process prepares ten times as many.
    trainings.start("slow", **COSTLY, step=0.4, start=at, limits=LIMITS)
    trainings.wait_received("slow")
    trainings.processes["fast"].kill()
    wait_processes(feed, 1, 1)
    trainings.wait_received("slow", more=8)
    # It is killed when it has just become one that prepares alone.
    feed.kill()
    trainings.wait_batches("slow", len(trainings.lines("slow")) + 4)
    trainings.stop("slow")
    trainings.check_exact("slow")
    trainings.check_exact("fast")


def test_the_next_feed_of_a_job_begins_with_what_was_found(trainings: FeedTrainings, tmp_path: Path) -> None:
    variables = {"MALLETRAIN_JOB_DIR": str(tmp_path / "job"), "MALLETRAIN_NODE": "n1#0"}
    trainings.start("first", variables, **COSTLY, limits=LIMITS)
    wait_processes(trainings.wait_feed(), 2, usable_cores())
    trainings.wait_received("first", more=100)
    trainings.stop("first")
    wait_until(lambda: not trainings.feed_processes(), PATIENCE, "the end of the feed")
    (path,) = (tmp_path / "job" / "feeds").iterdir()
    found = json.loads(path.read_text())
    assert found["processes"] >= 2
    assert found["rates"]["2"] > found["rates"]["1"] > 0
    assert os.stat(path).st_mode & 0o777 == 0o600  # noqa: PTH116 - as short
    (tmp_path / "stop").unlink()
    log = tmp_path / "job" / "logs" / "feed.log"
    before = log.read_text()
    trainings.start("second", variables, **COSTLY, limits=LIMITS)
    wait_processes(trainings.wait_feed(), 2, usable_cores())
    trainings.wait_received("second")
    assert "before 1;" not in log.read_text()[len(before) :]
    trainings.stop("second")
