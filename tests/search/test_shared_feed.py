"""Four trials of a search read the same data: one feed prepares each sample once for all that run on one machine."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

import malletrain

pytest.importorskip("optuna", reason="needs malletrain[search]")

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(300)]

TRIALS = 4
SAMPLES = 192
PASSES = 2
DATA = """\
import os
import numpy
import torch

class Noted(torch.utils.data.Dataset):
    def __init__(self, folder):
        self.folder = folder
    def __len__(self):
        return len(os.listdir(self.folder + "/samples"))
    def __getitem__(self, index):
        with open(f"{self.folder}/reads", "a") as log:
            log.write(f"{index}\\n")
        return torch.from_numpy(numpy.load(f"{self.folder}/samples/{index}.npy")), index

def noted(folder):
    return Noted(folder)
"""
TRAINER = """\
import os, sys, time
from pathlib import Path
import torch
from data import noted
from malletrain.client.elastic import ElasticTraining, init
from malletrain.client.feed import SharedSamples

folder, lr, trials, passes, shared = sys.argv[1], float(sys.argv[2]), *map(int, sys.argv[3:])
torch.set_num_threads(1)
torch.manual_seed(0)
init()
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
dataset = noted(folder)
training = ElasticTraining(model, optimizer, dataset_size=len(dataset), batch_per_worker=16)
samples = SharedSamples(
    dataset, training.batches(until=passes * len(dataset)), feed="data:noted" if shared else "",
    arguments={"folder": folder}, workers=1, patience_seconds=30.0,
)
Path(f"{folder}/started/{os.environ['MALLETRAIN_JOB_ID']}").touch()
deadline = time.monotonic() + 150
while len(os.listdir(f"{folder}/started")) < trials:  # trials that begin together, whatever their starts have cost
    assert time.monotonic() < deadline, "the other trials have not started"
    time.sleep(0.05)

@training.run
def train():
    for pictures, _ in samples:
        training.optimizer.zero_grad()
        loss = training.model(pictures).square().mean()
        loss.backward()
        training.step()

training.finish({"loss": float(lr), "received": samples.received, "prepared": samples.prepared})
"""


@pytest.fixture
def reads(tmp_path: Path) -> Path:
    """A folder with the script, its data, and a log of what is read."""
    numpy = pytest.importorskip("numpy")
    (tmp_path / "data.py").write_text(DATA)
    (tmp_path / "train.py").write_text(TRAINER)
    for name in ("samples", "started"):
        (tmp_path / name).mkdir()
    for number in range(SAMPLES):
        numpy.save(tmp_path / "samples" / f"{number}.npy", numpy.full(8, number, "float32"))
    return tmp_path


@pytest.mark.parametrize("shared", [1, 0], ids=["with a feed", "without one"])
def test_trials_on_one_machine_read_each_sample_once_a_pass(reads: Path, shared: int) -> None:
    with malletrain.local(nodes=TRIALS, settings={"job_manager.standby_memory_mib": "0"}) as cluster:
        study = malletrain.search(
            [sys.executable, "train.py", str(reads), "{lr}", str(TRIALS), str(PASSES), str(shared)],
            space={"lr": (0.001, 0.1)},
            metric="loss",
            trials=TRIALS,
            at_once=TRIALS,
            seed=1,
            storage=str(reads / "studies.db"),
            max_nodes=1,
            backend="torchrun",
            workdir=reads,
            env={"MALLETRAIN_FEED_FOLDER": str(reads / "feeds")},
        )
        jobs = [cluster.job(trial.user_attrs["job_id"]) for trial in study.trials]
        assert [job.state for job in jobs] == ["COMPLETED"] * TRIALS, [list(job.logs(tail=20)) for job in jobs]
        received, prepared = ([job.metrics[name] for job in jobs] for name in ("received", "prepared"))
    counts = Counter((reads / "reads").read_text().split())
    assert len(counts) == SAMPLES
    assert [a + b for a, b in zip(received, prepared, strict=True)] == [PASSES * SAMPLES] * TRIALS
    if shared:
        assert set(counts.values()) == {PASSES}, (counts.most_common(5), received, prepared)
        assert prepared == [0] * TRIALS
    else:
        assert set(counts.values()) == {PASSES * TRIALS}
