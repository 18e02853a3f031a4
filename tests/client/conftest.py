"""A Monitor, and trainers of one job; nothing of them is left after a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.client.peers import RecordingMonitor, Trainer

StartTrainer = Callable[..., Trainer]


@pytest.fixture
def monitor() -> Iterator[RecordingMonitor]:
    peer = RecordingMonitor()
    peer.start()
    yield peer
    peer.stop()


@pytest.fixture
def job_environment(tmp_path: Path, monitor: RecordingMonitor) -> dict[str, str]:
    return {
        "MALLETRAIN_JOB_ID": "j000001",
        "MALLETRAIN_JOB_DIR": str(tmp_path),
        "MALLETRAIN_MONITOR": monitor.address,
        "MALLETRAIN_SLOTS_PER_NODE": "2",
        "MALLETRAIN_TARGET_SAMPLES": "0",
        "MALLETRAIN_NODE": "n017",
    }


@pytest.fixture
def start_trainer(tmp_path: Path, job_environment: dict[str, str]) -> Iterator[StartTrainer]:
    trainers: list[Trainer] = []

    def start(**more: str) -> Trainer:
        trainers.append(Trainer({**job_environment, **more}, tmp_path))
        return trainers[-1]

    yield start
    for trainer in trainers:
        trainer.kill()
