"""Scripts whose libraries ask for a worker's place when they are imported: real supervisors, torch and Horovod."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.supervisor.running import Supervised, supervised
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

NOTES = """
import json, os, time
from pathlib import Path

FOLDER = Path(os.environ["MALLETRAIN_JOB_DIR"])

def note(event, **more):
    with (FOLDER / f"notes-{os.environ['MALLETRAIN_NODE']}-{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps({"event": event, "time": time.time(), "pid": os.getpid(), **more}) + "\\n")
"""
PLACES = """
import os
RANK = int(os.getenv(os.environ["RANK_VARIABLE"], -1))
SIZE = int(os.getenv(os.environ["SIZE_VARIABLE"], -1))
"""
TORCH = """
import signal
import time

import torch
import torch.distributed as dist

from kit.notes import note
from kit.places import RANK, SIZE

stopping = []
signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
note("before", rank=RANK, size=SIZE)
if RANK != -1:
    dist.init_process_group("gloo")
note("place", rank=RANK, size=SIZE, true_rank=dist.get_rank(), true_size=dist.get_world_size())
while True:
    stop = torch.tensor([float(bool(stopping))])
    dist.all_reduce(stop)
    note("batch", rank=RANK, size=SIZE)
    if stop.item():
        break
    time.sleep(0.05)
dist.destroy_process_group()
"""
HOROVOD = """
import os
import time

import horovod.torch as hvd
import torch

from kit.notes import FOLDER, note
from kit.places import RANK, SIZE

note("before", rank=RANK, size=SIZE)
while os.environ["MALLETRAIN_NODE"] == "n3" and not (FOLDER / "read").exists():
    time.sleep(0.02)  # it reads its data
hvd.init()
note("place", rank=RANK, size=SIZE, true_rank=hvd.rank(), true_size=hvd.size())
model = torch.nn.Linear(1, 1)
state = hvd.elastic.TorchState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), batch=0)

@hvd.elastic.run
def train(state):
    while state.batch < 1_000_000:
        hvd.allreduce(torch.ones(1), name="one")
        state.batch += 1
        note("batch", rank=hvd.rank(), size=hvd.size())
        time.sleep(0.05)
        state.commit()

train(state)
"""


def package(folder: Path, script: str) -> list[str]:
    """A package as many have it, and the command that runs it."""
    kit = folder / "kit"
    kit.mkdir(parents=True)
    for name, content in (("__init__", ""), ("notes", NOTES), ("places", PLACES), ("train", script)):
        (kit / f"{name}.py").write_text(content)
    return [sys.executable, "-m", "kit.train"]


def noted(job: Supervised, event: str) -> list[dict[str, Any]]:
    return [line for line in job.lines() if line["event"] == event]


def test_a_library_that_reads_rank_when_it_is_imported_finds_the_right_one_in_every_generation(tmp_path: Path) -> None:
    variables = {"RANK_VARIABLE": "RANK", "SIZE_VARIABLE": "WORLD_SIZE"}
    command = package(tmp_path, TORCH)
    with supervised(tmp_path, "n1", "n2", command=command, backend="torchrun", environment=variables) as job:
        job.wait_batch(2)
        job.rescale("n1", "n2", "n3")
        job.rescale("n3")
        job.stop(grace=10)
    places = noted(job, "place")
    assert sorted((place["rank"], place["size"]) for place in places) == [
        *((0, 1), (0, 2), (0, 3)),
        *((1, 2), (1, 3), (2, 3)),
    ]
    assert all((place["rank"], place["size"]) == (place["true_rank"], place["true_size"]) for place in places)
    before = {line["pid"] for line in noted(job, "before")}
    assert before == {place["pid"] for place in places}, "nothing has run the script that does not train"


def test_a_new_horovod_worker_knows_its_place_and_reads_its_data_while_the_others_train(tmp_path: Path) -> None:
    variables = {"RANK_VARIABLE": "HOROVOD_RANK", "SIZE_VARIABLE": "HOROVOD_SIZE"}
    with supervised(tmp_path, "n1", "n2", command=package(tmp_path, HOROVOD), environment=variables) as job:
        job.wait_batch(2)
        job.command("n1", "n2", "n3")
        wait_until(lambda: len(noted(job, "before")) == 3, 60, "the new worker's script")
        job.wait_batch(2)
        (tmp_path / "read").touch()
        job.wait_confirmed()
        job.wait_batch(3)
    places = noted(job, "place")
    assert sorted((place["rank"], place["size"]) for place in places) == [(0, 2), (1, 2), (2, 3)]
    assert all((place["rank"], place["size"]) == (place["true_rank"], place["true_size"]) for place in places)


def test_a_worker_whose_place_changes_before_it_joins_is_started_anew(tmp_path: Path) -> None:
    variables = {"RANK_VARIABLE": "HOROVOD_RANK", "SIZE_VARIABLE": "HOROVOD_SIZE"}
    with supervised(tmp_path, "n1", "n2", command=package(tmp_path, HOROVOD), environment=variables) as job:
        job.wait_batch(2)
        job.command("n1", "n2", "n3")
        wait_until(lambda: len(noted(job, "before")) == 3, 60, "the new worker's script")
        job.release("n2", grace=5)
        (tmp_path / "read").touch()
        job.command("n1", "n3")
        job.wait_confirmed()
        job.wait_batch(2)
    assert [(line["rank"], line["size"]) for line in noted(job, "before")][-2:] == [(2, 3), (1, 2)]
    last = noted(job, "place")[-1]
    assert (last["rank"], last["size"], last["true_rank"], last["true_size"]) == (1, 2, 1, 2)
