"""An elastic training on shared samples: over rescales and a loss, each sample of an epoch is trained on once."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from tests.client.feed.running import PATIENCE, FeedTrainings
from tests.support.generations import Launcher
from tests.support.waiting import wait_until
from tests.training.accounts import accounts_of, lines_in
from tests.training.trainer_settings import BATCH, SIZE

TRAINER = Path(__file__).with_name("elastic_trainer.py")


@pytest.mark.long
@pytest.mark.timeout(240)
def test_ranks_and_scales_change_and_no_sample_is_lost_or_seen_twice(tmp_path: Path) -> None:
    feeds = FeedTrainings(tmp_path)
    environment = {
        "TEST_SAMPLES": str(1000 * SIZE),
        "TEST_LOG": str(tmp_path / "prepared.log"),
        "MALLETRAIN_FEED_FOLDER": str(feeds.feeds),
    }
    launcher = Launcher(TRAINER, tmp_path, environment, ["malletrain.client.feed"])
    try:
        for scale in (2, 3):
            with launcher.generation(scale) as workers:
                wait_batches_of_the_feed(tmp_path, scale)
                assert workers.stop() == [0] * scale
        assert accounts_of(tmp_path).repeated == []
        with launcher.generation(2) as workers:
            wait_batches_of_the_feed(tmp_path, 2)
            assert workers.lose(0)[1] == 0
        with launcher.generation(1) as workers:
            wait_until(lambda: accounts_of(tmp_path).samples >= SIZE, PATIENCE, "an epoch")
            assert workers.stop() == [0]
    finally:
        for feed in feeds.feed_processes():
            feed.kill()
    accounts = accounts_of(tmp_path)
    assert accounts.check_epochs() >= 1
    assert len(accounts.repeated) <= 2 * 2 * BATCH


def wait_batches_of_the_feed(folder: Path, scale: int) -> None:
    """Wait until each rank of the present scale has had samples of the feed."""
    since = len(lines_in(folder))

    def ranks() -> set[int]:
        return {line["rank"] for line in lines_in(folder)[since:] if line["size"] == scale and line["received"]}

    wait_until(lambda: ranks() == set(range(scale)), PATIENCE, f"samples of the feed for {scale} ranks")
