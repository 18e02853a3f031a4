"""A checkpoint that version 0.1.0 has written is loaded with everything that is in it.

`data/checkpoint-0.1.0.pt` is from a training as below, of 40 samples, saved by `finish`. The expected values were
printed there.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

OLD = Path(__file__).parent / "data" / "checkpoint-0.1.0.pt"

TRAINING = """
import random, sys
from pathlib import Path
import torch
from malletrain.client.distributed import ElasticTraining, init

init()
model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
folder = Path(sys.argv[1])
training = ElasticTraining(
    model, optimizer, dataset_size=16, batch_per_worker=4, reference_batch=4, seed=5, checkpoint_folder=folder
)
scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, 2)
training.register("scheduler", scheduler)

@training.run
def train() -> None:
    assert training.samples == 40
    state = model.state_dict()
    torch.testing.assert_close(state["0.bias"], torch.tensor([-0.0114, 0.4578]), atol=1e-4, rtol=0)
    torch.testing.assert_close(state["1.running_var"], torch.tensor([3.9546, 5.8147]), atol=1e-4, rtol=0)
    assert state["1.num_batches_tracked"] == 10
    assert len(optimizer.state_dict()["state"]) == 4
    assert scheduler.last_epoch == 10
    torch.testing.assert_close(torch.rand(2), torch.tensor([0.4556, 0.6323]), atol=1e-4, rtol=0)
    assert random.random() == 0.8444218515250481
    print("as it was")
"""


def load(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", TRAINING, str(folder)], capture_output=True, text=True, timeout=60, check=False
    )


def test_everything_in_it_is_restored(tmp_path: Path) -> None:
    shutil.copy(OLD, tmp_path / "samples-000000000000040.pt")
    done = load(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "resumed at 40 samples" in done.stderr
    assert "as it was" in done.stdout


def test_its_checksum_is_still_verified(tmp_path: Path) -> None:
    content = bytearray(OLD.read_bytes())
    content[random.Random(0).randrange(len(content) - 100)] ^= 1
    (tmp_path / "samples-000000000000040.pt").write_bytes(content)
    assert "does not fit its checksum" in load(tmp_path).stderr
