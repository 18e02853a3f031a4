"""Several iterators of one training's samples, on a real feed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from malletrain.client.feed import SharedSamples
from malletrain.client.sampling import EpochOrder, plain_batches
from tests.client.feed.feed_data import late, noted
from tests.client.feed.running import DEFAULTS, PATIENCE, SIZE, FeedTrainings

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]
FEED = str(DEFAULTS["feed"])


@pytest.fixture
def feeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FeedTrainings]:
    running = FeedTrainings(tmp_path)
    monkeypatch.setenv("MALLETRAIN_FEED_FOLDER", str(running.feeds))
    yield running
    running.close()


def shared(feeds: FeedTrainings, feed: str = FEED) -> SharedSamples:
    arguments = {"size": SIZE, "log": str(feeds.folder / "prepared.log")}
    batches = plain_batches(EpochOrder(SIZE, 3), 4, 0, SIZE)
    return SharedSamples(noted(**arguments), batches, feed=feed, arguments=arguments, patience_seconds=PATIENCE)


@pytest.mark.parametrize("feed", [FEED, ""])
def test_a_newer_iterator_takes_over_from_one_that_has_not_ended(feeds: FeedTrainings, feed: str) -> None:
    samples = shared(feeds, feed)
    older = iter(samples)
    first = next(older)[1]["label"].tolist()
    newer = iter(samples)
    assert next(newer)[1]["label"].tolist() == first == EpochOrder(SIZE, 3).span(0, 4)
    with pytest.raises(RuntimeError, match="expected one iterator at a time, and a newer one has begun"):
        next(older)
    assert sum(len(more["label"]) for _, more in newer) == SIZE - 4
    assert (samples.received > 0) == bool(feed)


def test_the_late_end_of_an_older_iterator_leaves_the_newer_one_its_feed(feeds: FeedTrainings) -> None:
    samples = shared(feeds)
    older = iter(samples)
    next(older)
    newer = iter(samples)
    next(newer)
    older.close()  # type: ignore[attr-defined]
    assert len(list(newer)) == SIZE // 4 - 1
    assert samples.received == SIZE + 4
    assert samples.prepared == 0


def test_a_library_that_only_samples_import_is_seeded_in_the_feed_too(feeds: FeedTrainings) -> None:
    arguments = {"size": SIZE, "log": str(feeds.folder / "prepared.log")}
    spec = "tests.client.feed.feed_data:late"
    shifts = []
    for feed in (spec, ""):
        batches = plain_batches(EpochOrder(SIZE, 3), 4, 0, SIZE)
        samples = SharedSamples(late(**arguments), batches, feed=feed, arguments=arguments, patience_seconds=PATIENCE)
        shifts.append([more["shift"].tolist() for _, more in samples])
        assert (samples.received > 0) == bool(feed)
    assert shifts[0] == shifts[1]
