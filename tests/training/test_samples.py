"""Over 2, 8, 3, 0 and 5 workers each sample of an epoch is trained on once; what a kill undoes is done again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tests.training.accounts import accounts_of, lines_in
from tests.training.trainer_settings import BATCH, SIZE

pytestmark = pytest.mark.long

TRAINER = Path(__file__).with_name("trainer.py")
PATIENCE = 150.0
"""Six interpreters that boot at once take 46 s on two slow cores."""


def batches_at(folder: Path, scale: int, since: int) -> int:
    """Rank 0's batches at this scale among the notes after the first `since`."""
    return sum(
        line["event"] == "batch" and line["rank"] == 0 and line["size"] == scale for line in lines_in(folder)[since:]
    )


def reached(folder: Path) -> int:
    """The sample counter at which the newest batch has begun."""
    return max(line["before"] for line in lines_in(folder) if line["event"] == "batch")


def wait_batches(folder: Path, scale: int, count: int = 10) -> None:
    """Wait until so many batches at this scale are done from now on."""
    since = len(lines_in(folder))
    wait_until(lambda: batches_at(folder, scale, since) >= count, PATIENCE, f"{count} batches of {scale} workers")


@pytest.mark.timeout(240)
@pytest.mark.processes
def test_torch_distributed(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch")
    from tests.support.generations import Launcher

    launcher = Launcher(TRAINER, tmp_path)
    for scale in (2, 8):
        with launcher.generation(scale) as workers:
            wait_batches(tmp_path, scale)
            assert workers.stop() == [0] * scale
    assert accounts_of(tmp_path).repeated == []

    # Rank 0 is killed: rank 1 saves what all had after the last complete step.
    with launcher.generation(3) as workers:
        wait_batches(tmp_path, 3)
        assert workers.lose(0)[1] == 0
    with launcher.generation(3) as workers:
        wait_batches(tmp_path, 3)
        # At 0 workers there is nothing but the checkpoint.
        assert workers.stop() == [0, 0, 0]
    accounts = accounts_of(tmp_path)
    # Nobody can be further than one batch ahead of the others.
    assert len(accounts.repeated) <= 2 * 3 * BATCH

    with launcher.generation(5) as workers:
        wait_until(lambda: reached(tmp_path) >= SIZE, PATIENCE, "an epoch")
        assert workers.stop() == [0] * 5
    accounts = accounts_of(tmp_path)
    assert accounts.check_epochs() >= 1
    accounts.check_state()
    assert {batch["size"] for batch in accounts.batches} == {2, 8, 3, 5}
    assert list((tmp_path / "saving").iterdir()) == []


@pytest.mark.training
@pytest.mark.horovod
@pytest.mark.timeout(600)
def test_elastic_horovod(tmp_path: Path) -> None:
    pytest.importorskip("horovod.torch", reason="needs Horovod: run deploy/install-horovod.sh")
    from tests.supervisor.running import supervised

    command = [sys.executable, str(TRAINER)]
    hosts = [f"n{number}" for number in range(1, 9)]
    with supervised(tmp_path, *hosts[:2], command=command) as job:
        job.wait_confirmed()
        wait_batches(tmp_path, 2)
        for scale in (8, 3):
            job.command(*hosts[:scale])
            wait_batches(tmp_path, scale)
        assert accounts_of(tmp_path).repeated == []

        lost = job.pids()["n3"]
        os.kill(lost, signal.SIGKILL)
        wait_batches(tmp_path, 3)
        job.stop(grace=20.0)
        assert job.outcome()["outcome"] == "STOPPED"
    before = accounts_of(tmp_path)

    with supervised(tmp_path, "n11", "n12", "n13", "n14", "n15", command=command) as job:
        wait_batches(tmp_path, 5)
        wait_until(lambda: reached(tmp_path) >= SIZE, PATIENCE, "an epoch")
        job.stop(grace=20.0)
        assert job.outcome()["outcome"] == "STOPPED"
    accounts = accounts_of(tmp_path)
    assert accounts.check_epochs() >= 1
    accounts.check_state()
    # What was lost is what the killed one's group had done since its last commit, and nothing else was done twice.
    assert accounts.repeated == before.repeated
    with_lost = [batch["before"] for batch in accounts.batches if batch["pid"] == lost]
    assert set(accounts.repeated) <= set(range(min(with_lost), max(with_lost) + 3 * 2 * BATCH))


@pytest.mark.timeout(120)
def test_a_training_that_ends_says_so_once(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch")
    from tests.support.generations import Launcher

    wanted = 400
    with Launcher(TRAINER, tmp_path, {"TEST_SAMPLES": str(wanted)}).generation(3) as workers:
        assert workers.join() == [0, 0, 0]
    accounts = accounts_of(tmp_path)
    completed = json.loads((tmp_path / "completed.json").read_text())
    assert completed["samples"] == accounts.samples >= wanted
    assert accounts.repeated == []
    assert len(list((tmp_path / "checkpoints").glob("*.pt"))) >= 1


@pytest.mark.training
@pytest.mark.timeout(120)
def test_a_failure_of_the_scripts_own_is_no_loss(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch")
    from tests.support.generations import Launcher

    with Launcher(TRAINER, tmp_path, {"TEST_FAILS_AT": "100"}).generation(2) as workers:
        # Nobody is told to save: both give up, each with what it knows.
        assert workers.join() == [1, 1]
    assert "RuntimeError: this script is wrong" in (tmp_path / "1.log").read_text()
    assert "stopping at" not in (tmp_path / "0.log").read_text()


@pytest.mark.training
@pytest.mark.horovod
def test_a_job_can_change_its_launcher(tmp_path: Path) -> None:
    pytest.importorskip("horovod.torch", reason="needs Horovod: run deploy/install-horovod.sh")
    from tests.support.generations import Launcher

    launcher = Launcher(TRAINER, tmp_path)
    with launcher.generation(2) as workers:
        wait_batches(tmp_path, 2)
        assert workers.stop() == [0, 0]
    wanted = accounts_of(tmp_path).samples + 20 * BATCH
    under_horovod = {"MALLETRAIN_BACKEND": "horovod", "TEST_SAMPLES": str(wanted)}
    environment = {**os.environ, **launcher.environment, **under_horovod}
    subprocess.run([sys.executable, str(TRAINER)], env=environment, check=True, timeout=60)
    accounts = accounts_of(tmp_path)
    assert accounts.samples == wanted
    assert accounts.repeated == []
    accounts.check_state()
