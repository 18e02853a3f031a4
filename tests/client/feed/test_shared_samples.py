"""Real trainings share a real feed, and faults of either side."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("torch", reason="needs torch")

from tests.client.feed.running import ALONE, ENDLESS, PATIENCE, SIZE, FeedTrainings
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]
STALL = 2.0
"""How long a fault of the feed may keep a training waiting, in seconds, where nobody else wants the processors."""
NEVER_FAR = {"samples": ENDLESS, "linger_seconds": 0.5}
"""Limits by which trainings that have read by themselves are near enough to share a feed again."""


@pytest.fixture
def trainings(tmp_path: Path) -> Iterator[FeedTrainings]:
    running = FeedTrainings(tmp_path)
    yield running
    running.close()


def test_three_trainings_of_unlike_batches_prepare_each_sample_once(trainings: FeedTrainings) -> None:
    batches = {"four": 4, "seven": 7, "sixteen": 16}
    for name, batch in batches.items():
        trainings.start(name, batch=batch)
    trainings.wait_batches("four", 1)
    # Its shared memory has no name, and so can't be left behind.
    maps = [mapped.path for mapped in trainings.wait_feed().memory_maps()]
    assert any(path.startswith("/memfd:malletrain-feed") for path in maps)
    assert not any(path.startswith("/dev/shm") for path in maps)
    trainings.wait(*batches)
    trainings.check_complete(*batches)
    for name in batches:
        assert trainings.lines(name)[-1]["prepared"] == 0, trainings.log(name)
    ends = [line["first"] + len(line["indices"]) for name in batches for line in trainings.lines(name)]
    # What was asked for ahead goes beyond the end of none: there are no more batches.
    assert sum(trainings.prepared().values()) == max(ends)

    # Nothing is left.
    wait_until(lambda: not trainings.feed_processes(), PATIENCE, "the end of the feed")
    assert [path.name for path in trainings.feeds.iterdir()] == ["feed.log"]
    assert (trainings.feeds / "feed.log").read_text() == ""


def test_losses_are_equal_with_and_without_a_feed(trainings: FeedTrainings) -> None:
    trainings.start("with")
    trainings.start("without", feed="")
    trainings.start("alone", feed="", workers=0)
    trainings.wait("with", "without", "alone")
    losses = {name: [line["loss"] for line in trainings.lines(name)] for name in trainings.processes}
    assert losses["with"] == losses["without"] == losses["alone"]
    assert trainings.lines("with")[-1]["prepared"] == 0
    assert trainings.lines("without")[-1]["received"] == 0


def test_a_training_goes_on_at_its_checkpoint(trainings: FeedTrainings) -> None:
    trainings.start("whole", until=2 * SIZE)
    trainings.start("first", until=SIZE + 4)
    trainings.wait("first", "whole")
    trainings.start("second", start=SIZE + 4, until=2 * SIZE)
    trainings.wait("second")
    trainings.check_complete("first", "second", "whole")
    indices = [line["indices"] for name in ("first", "second") for line in trainings.lines(name)]
    assert indices == [line["indices"] for line in trainings.lines("whole")]


def test_another_seed_is_another_feed(trainings: FeedTrainings) -> None:
    trainings.start("one", until=SIZE)
    trainings.start("other", until=SIZE, seed=4)
    trainings.wait("one", "other")
    trainings.check_complete("one", "other")
    assert sum(trainings.prepared().values()) == 2 * SIZE


FAR = 100_000 * SIZE


def test_trainings_at_another_position_share_among_themselves(trainings: FeedTrainings) -> None:
    for name in ("one", "two"):
        trainings.start(name, until=ENDLESS, step=0.01, limits=NEVER_FAR)
    trainings.wait_received("one", "two")
    feed = trainings.wait_feed()
    first = {process.pid for process in feed.children()}
    for name, batch in (("later", 4), ("latest", 5)):
        trainings.start(name, start=FAR, batch=batch, until=FAR + 10 * SIZE, step=0.01, limits=NEVER_FAR)
    trainings.wait_received("later", "latest")
    assert {process.pid for process in trainings.wait_feed().children()} > first, "processes of their own"
    rings = [mapped.path for mapped in feed.memory_maps(grouped=False) if "malletrain-feed" in mapped.path]
    assert len(rings) == 2
    killed = next(process for process in feed.children() if process.pid not in first)
    killed.kill()
    trainings.wait("later", "latest")
    trainings.check_complete("later", "latest")
    trainings.wait_received("one", "two", more=40)
    # Both leave nothing behind, and the others have not noticed.
    wait_until(lambda: {process.pid for process in feed.children()} == first, PATIENCE, "the end of their processes")
    assert sum("malletrain-feed" in mapped.path for mapped in feed.memory_maps(grouped=False)) == 1
    trainings.stop("one", "two")
    for name in ("one", "two"):
        assert trainings.check_exact(name)[-1]["prepared"] == 0, trainings.log(name)
    # What the killed process had been asked for they have prepared themselves.
    own = sum(trainings.lines(name)[-1]["prepared"] for name in ("later", "latest"))
    assert own <= 2 * 2
    ahead = {name: trainings.lines(name)[-1] for name in ("one", "two")}
    near = max(line["first"] + len(line["indices"]) for line in ahead.values())
    # Two batches are asked for ahead at most, by which all that was prepared is counted.
    assert sum(trainings.prepared().values()) <= near + 10 * SIZE + own + 2 * 128


def test_another_position_is_read_by_the_training_itself_where_there_is_no_room(trainings: FeedTrainings) -> None:
    trainings.start("here", until=ENDLESS, step=0.01, limits={"samples": 16, "linger_seconds": 0.5, "groups": 1})
    trainings.wait_batches("here", 1)
    trainings.start("far", start=FAR, until=FAR + 2 * SIZE)
    trainings.wait("far")
    trainings.check_complete("far")
    assert trainings.received("far") == 0
    assert "where the others are" in trainings.log("far")
    trainings.stop("here")
    assert trainings.check_exact("here")[-1]["prepared"] == 0


def test_a_feed_is_killed(trainings: FeedTrainings) -> None:
    trainings.start_alone()
    for name, batch in (("one", 4), ("other", 5)):
        trainings.start(name, batch=batch, until=ENDLESS, step=0.01, patience=STALL, limits=NEVER_FAR)
    first = trainings.wait_feed()
    trainings.wait_received("one", "other")
    children = first.children()
    at = time.monotonic()
    first.kill()
    psutil.wait_procs(children, 10)
    assert not any(child.is_running() for child in children)
    # Another feed is started, and both use it.
    trainings.wait_received("one", "other", more=100)
    trainings.stop("one", "other", ALONE)
    for name in ("one", "other"):
        trainings.check_exact(name)
        assert trainings.max_gap(name, at) < STALL + trainings.delay(at)


def test_a_training_is_killed(trainings: FeedTrainings) -> None:
    trainings.start_alone()
    for name in ("stays", "killed"):
        trainings.start(name, until=ENDLESS, step=0.01)
    trainings.wait_received("stays", "killed")
    at = time.monotonic()
    trainings.signal("killed", signal.SIGKILL)
    trainings.wait_received("stays", more=200)
    trainings.stop("stays", ALONE)
    trainings.check_exact("killed")
    assert trainings.check_exact("stays")[-1]["prepared"] == 0
    assert trainings.max_gap("stays", at) < STALL + trainings.delay(at)


def test_a_training_that_stands_still_stalls_nobody(trainings: FeedTrainings) -> None:
    trainings.start_alone()
    for name in ("goes", "stops"):
        trainings.start(name, until=ENDLESS, step=0.005, limits={"samples": 16, "linger_seconds": 0.5})
    trainings.wait_received("goes", "stops")
    at = time.monotonic()
    trainings.signal("stops", signal.SIGSTOP)
    try:
        trainings.wait_received("goes", more=200)
    finally:
        trainings.signal("stops", signal.SIGCONT)
    trainings.wait_batches("stops", len(trainings.lines("stops")) + 20)
    trainings.stop("goes", "stops", ALONE)
    assert trainings.check_exact("goes")[-1]["prepared"] == 0
    assert 1.0 < trainings.max_gap("goes", at) < STALL + trainings.delay(at)
    assert trainings.check_exact("stops")[-1]["prepared"] > 0
    assert "it has kept others waiting" in trainings.log("stops")


def test_a_feed_that_stands_still_stalls_nobody(trainings: FeedTrainings) -> None:
    trainings.start_alone()
    for name, batch in (("one", 4), ("other", 7)):
        trainings.start(name, batch=batch, until=ENDLESS, step=0.005, patience=STALL, limits=NEVER_FAR)
    feed = trainings.wait_feed()
    trainings.wait_received("one", "other")
    at = time.monotonic()
    feed.suspend()
    try:
        for name in ("one", "other"):
            trainings.wait_batches(name, len(trainings.lines(name)) + 50)
    finally:
        feed.resume()
    # They find it again.
    trainings.wait_received("one", "other", more=50)
    trainings.stop("one", "other", ALONE)
    for name in ("one", "other"):
        assert trainings.check_exact(name)[-1]["prepared"] > 0
        # It looks from time to time, and on a busy machine somewhat later.
        assert 1.0 < trainings.max_gap(name, at) < 1.5 * STALL + trainings.delay(at)


def test_a_process_of_the_feed_is_killed(trainings: FeedTrainings) -> None:
    trainings.start("one", until=ENDLESS, step=0.01)
    feed = trainings.wait_feed()
    trainings.wait_received("one")
    feed.children()[0].kill()
    trainings.wait_received("one", more=200)
    trainings.stop("one")
    # At most what that process had been asked for.
    assert trainings.check_exact("one")[-1]["prepared"] <= 2


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        ("tests.client.feed.feed_data:shorter", f"expected {SIZE} samples, as in the training, got {SIZE - 1}"),
        ("tests.client.feed.feed_data:unsuitable", r"sample[0]: expected a tensor or NumPy array of numbers"),
        ("tests.client.feed.feed_data:broken", "OSError: the disk of"),
        ("tests.client.feed.feed_data:missing", "expected a function missing in tests.client.feed.feed_data"),
    ],
)
def test_what_cannot_be_shared_is_said_once_and_read_by_the_training(
    trainings: FeedTrainings, feed: str, message: str
) -> None:
    trainings.start("one", feed=feed, until=SIZE)
    trainings.wait("one")
    trainings.check_complete("one")
    assert trainings.received("one") == 0
    assert trainings.log("one").count(message) == 1, trainings.log("one")
    assert "is not used" in trainings.log("one")


def test_an_error_of_the_dataset_is_that_of_the_training(trainings: FeedTrainings) -> None:
    for name, feed in (("with", "tests.client.feed.feed_data:noted"), ("without", "")):
        trainings.start(name, feed=feed, fails_at=17, until=SIZE)
        assert trainings.exit_code(name) == 1
        trainings.check_exact(name)
        assert "KeyError: 'sample 17 is broken'" in trainings.log(name)
    assert trainings.lines("with")[-1]["first"] == trainings.lines("without")[-1]["first"]
