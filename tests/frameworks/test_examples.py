"""The examples over 1, 2, 3 and 1 workers, and the loss of rank 0: no sample is skipped or lost."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from tests.frameworks.diffs import EXAMPLES
from tests.frameworks.needing import need
from tests.support.generations import Launcher
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(500)]

PATIENCE = 120.0
# Samples in the training set of each example.
SAMPLES = {"lightning": 1437, "transformers": 1227, "accelerate": 1227}
# The process that workers are forked from is one for all tests.
PRELOADED = (
    "sklearn.datasets",
    "lightning",
    "accelerate",
    "transformers.trainer",
    "transformers.models.bert.modeling_bert",
)


def marks(folder: Path, word: str) -> list[int]:
    """Sample counters that the helper has printed after a word, by rank 0 or whoever has saved."""
    found = [path.read_text() for path in sorted(folder.glob("*.log"))]
    return [int(number) for text in found for number in re.findall(rf"malletrain: {word} at (\d+) samples", text)]


def newest(folder: Path) -> int:
    """Sample counter of the newest checkpoint; 0 without one."""
    return max((int(path.stem.partition("-")[2]) for path in (folder / "checkpoints").glob("samples-*.pt")), default=0)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_worker_goes_on_from_the_sample_at_which_the_others_stopped(name: str, tmp_path: Path) -> None:
    need(name)
    variables = {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "test", "LOCAL_WORLD_SIZE": "1"}
    launcher = Launcher(EXAMPLES / name / "elastic.py", tmp_path, variables, PRELOADED)
    arguments = ("--epochs", "6", "--step-seconds", "0.2")
    for scale in (1, 2):
        before = newest(tmp_path)
        with launcher.generation(scale, *arguments) as workers:
            wait_until(lambda before=before: newest(tmp_path) > before, PATIENCE, f"a checkpoint of {scale} workers")
            assert workers.stop() == [0] * scale
        assert newest(tmp_path) == max(marks(tmp_path, "stopping")) > before
    before = newest(tmp_path)
    with launcher.generation(3, *arguments) as workers:
        wait_until(lambda: newest(tmp_path) > before, PATIENCE, "a checkpoint of 3 workers")
        assert workers.lose(0)[1] == 0
    lost = newest(tmp_path)
    assert lost == max(marks(tmp_path, "stopping")) > before
    # To the end of the epoch, which takes few steps.
    epochs = str(lost // SAMPLES[name] + 1)
    with launcher.generation(1, "--epochs", epochs) as workers:
        assert workers.join(PATIENCE) == [0]
    # Every sample counter at which workers began is one at which others had stopped.
    assert set(marks(tmp_path, "resumed")) == set(marks(tmp_path, "stopping"))
    completed = json.loads((tmp_path / "completed.json").read_text())
    assert completed["samples"] > lost
    assert any("accuracy" in metric for metric in completed["metrics"])


@pytest.mark.parametrize("name", [*SAMPLES, "fsdp2"])
def test_the_plain_script_trains_by_itself(name: str) -> None:
    if name in SAMPLES:
        need(name)
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"] if name == "fsdp2" else []
    command = [sys.executable, *launcher, str(EXAMPLES / name / "plain.py"), "--epochs", "1"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"(accuracy|loss)\D+\d", done.stdout), done.stdout
