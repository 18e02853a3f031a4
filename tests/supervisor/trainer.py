"""A small real training that notes every batch, for tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from horovod.torch import mpi_ops
from torch import nn
from torch.nn import functional

from malletrain.client.horovod import ElasticTraining

WANTED = int(os.environ.get("TEST_SAMPLES", "1000000"))
BATCH = 8
SIZE = 512

folder = Path(os.environ["MALLETRAIN_JOB_DIR"])
notes = (folder / f"notes-{os.environ['MALLETRAIN_NODE']}-{os.getpid()}.jsonl").open("a", buffering=1)


def note(event: str, **more: object) -> None:
    notes.write(json.dumps({"event": event, "time": time.time(), "pid": os.getpid(), **more}) + "\n")


torch.set_num_threads(1)
torch.manual_seed(0)
if "TEST_CHILD" in os.environ:
    # One that leaves the worker's session and does not care about its end.
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
time.sleep(float(os.environ.get("TEST_BOOT_SECONDS", "0")))
if os.environ["MALLETRAIN_NODE"] in os.environ.get("TEST_DIES_JOINING", ""):
    died = folder / "died"
    initialise = mpi_ops._basics.init

    def die_once() -> None:
        """Die after the supervisor has said go, before the others know where this worker is."""
        if not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        initialise()

    mpi_ops._basics.init = die_once
hvd.init()
inputs = torch.randn(SIZE, 16, generator=torch.Generator().manual_seed(1))
labels = (inputs[:, :4].sum(1) > 0).long()
model = nn.Linear(16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
training = ElasticTraining(
    model, optimizer, dataset_size=SIZE, batch_per_worker=BATCH, reference_batch=BATCH, commit_seconds=1.0
)
if "TEST_SYNC_SECONDS" in os.environ:
    synchronise = training._state.sync

    def slowly() -> None:
        if hvd.rank() == 0 and hvd.size() > 1:
            note("sync")
            time.sleep(float(os.environ["TEST_SYNC_SECONDS"]))
        synchronise()

    training._state.sync = slowly
note("start", rank=hvd.rank(), samples=training.samples)


@training.run
def train() -> None:
    while training.samples < WANTED:
        before = training.samples
        indices = training.next_indices()
        training.optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs[indices]), labels[indices])
        loss.backward()
        rate = training.optimizer.param_groups[0]["lr"]
        weight = float(model.weight.detach().double().sum())
        place = {"rank": hvd.rank(), "size": hvd.size()}
        note("batch", before=before, indices=indices, rate=rate, loss=loss.item(), weight=weight, **place)
        training.step()
        time.sleep(0.02)


note("done", samples=training.samples)
training.finish({"weight": float(model.weight.detach().sum())})
