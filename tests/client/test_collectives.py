"""Workers that wait in a collective for one that does not come: within the job's own time limit they know."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from tests.support.generations import Generation, Launcher
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

SCRIPT = Path(__file__).with_name("waiting_trainer.py")
PATIENCE = 90.0
LIMIT = {"OMP_NUM_THREADS": "1", "MALLETRAIN_COLLECTIVE_SECONDS": "3", "LOCAL_WORLD_SIZE": "1"}


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return Launcher(SCRIPT, tmp_path, LIMIT)


def frozen(launcher: Launcher, running: Generation, mark: Path) -> None:
    wait_until(mark.exists, PATIENCE, "a worker that is frozen")
    assert running.workers[0].is_alive(), log(launcher)


def log(launcher: Launcher) -> str:
    return (launcher.folder / "0.log").read_text()


def test_one_that_is_told_of_the_loss_saves_what_came_before(launcher: Launcher, tmp_path: Path) -> None:
    with launcher.generation(2, str(tmp_path / "mark")) as running:
        frozen(launcher, running, tmp_path / "mark")
        running.signal(signal.SIGTERM, 0)
        running.workers[0].join(PATIENCE)
        code = running.workers[0].exitcode
    assert code == 0, log(launcher)
    assert "another worker is lost" in log(launcher)
    (saved,) = (launcher.folder / "checkpoints").glob("samples-*.pt")
    assert int(saved.stem.partition("-")[2]) == 64


def test_without_a_word_from_the_launcher_it_ends_with_the_error(launcher: Launcher, tmp_path: Path) -> None:
    with launcher.generation(2, str(tmp_path / "mark")) as running:
        frozen(launcher, running, tmp_path / "mark")
        running.workers[0].join(PATIENCE)
        code = running.workers[0].exitcode
    assert code == 1, log(launcher)
    assert "3000ms" in log(launcher)


def test_the_last_save_may_take_longer(launcher: Launcher) -> None:
    with launcher.generation(2, "slow") as running:
        assert running.join(PATIENCE) == [0, 0], log(launcher) + (launcher.folder / "1.log").read_text()
    assert (launcher.folder / "completed.json").exists()
