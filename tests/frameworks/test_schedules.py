"""A schedule of a fixed length over 2, 1 and 3 workers: it ends with the training, with each framework and without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.frameworks.needing import need

pytest.importorskip("torch", reason="needs torch")

from benchmarks.learning import stopping
from tests.frameworks.cycle_trainer import EPOCHS, SIZE
from tests.support.generations import Launcher

pytestmark = pytest.mark.timeout(500)

SCRIPT = Path(__file__).with_name("cycle_trainer.py")
PRELOADED = ("lightning", "accelerate", "transformers.trainer")


def check_end(folder: Path, name: str, *, preloaded: tuple[str, ...] = ()) -> None:
    """Train over changes of scale, and look where the schedule ends."""
    variables = {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "test", "LOCAL_WORLD_SIZE": "1"}
    launcher = Launcher(Path(stopping.__file__), folder, variables, preloaded)
    for workers, end in ((2, SIZE // 2), (1, SIZE), (3, 0)):
        with launcher.generation(workers, str(SCRIPT), str(end), name) as running:
            assert running.join(240) == [0] * workers, (folder / "0.log").read_text()[-3000:]
    assert json.loads((folder / "completed.json").read_text())["samples"] >= EPOCHS * SIZE
    found = json.loads((folder / "schedule.json").read_text())
    assert found["of"] - 1 <= found["steps"] <= found["of"] + 1
    assert 0 <= found["rate"] < 0.001, "a cycle ends near 0"


@pytest.mark.frameworks
@pytest.mark.parametrize("name", ["lightning", "transformers", "accelerate"])
def test_it_ends_with_the_training_of_a_framework(name: str, tmp_path: Path) -> None:
    need(name)
    check_end(tmp_path, name, preloaded=PRELOADED)


@pytest.mark.training
def test_it_ends_with_the_training_of_a_loop(tmp_path: Path) -> None:
    check_end(tmp_path, "elastic")
