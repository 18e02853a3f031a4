"""Each framework in bfloat16 over 2, 3 and 1 workers: the weights are those of one plain process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.frameworks.needing import need

pytest.importorskip("torch", reason="needs torch")

from benchmarks.learning import stopping
from tests.frameworks.plain_process import CLOSE, farthest, reference
from tests.support.generations import Launcher
from tests.training.amp_trainer import SIZE

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(500)]

SCRIPT = Path(__file__).with_name("small_trainer.py")
EPOCHS = 2
PRELOADED = ("lightning", "accelerate", "transformers.trainer")


@pytest.mark.parametrize("name", ["lightning", "accelerate", "transformers"])
def test_the_weights_are_those_of_one_process(name: str, tmp_path: Path) -> None:
    need(name)
    variables = {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "test", "LOCAL_WORLD_SIZE": "1"}
    launcher = Launcher(Path(stopping.__file__), tmp_path, variables, PRELOADED)
    for workers, end in ((2, SIZE // 2), (3, SIZE), (1, 3 * SIZE // 2), (2, 0)):
        with launcher.generation(workers, str(SCRIPT), str(end), name, "--epochs", str(EPOCHS)) as running:
            assert running.join(240) == [0] * workers, (tmp_path / "0.log").read_text()[-3000:]
    assert json.loads((tmp_path / "completed.json").read_text())["samples"] == EPOCHS * SIZE
    found = json.loads((tmp_path / "weights.json").read_text())
    worst, too_large, too_small = (farthest(found, reference(EPOCHS, factor)) for factor in (1.0, 1.1, 0.9))
    print(f"largest difference to one process: {worst:.2g}")
    assert worst <= CLOSE < min(too_large, too_small), "a tenth more or less in the gradients would be seen"
