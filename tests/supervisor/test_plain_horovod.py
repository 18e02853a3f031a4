"""Scripts of Horovod that are not elastic, and commands that name no backend: a real supervisor, real workers."""

from __future__ import annotations

import importlib.util
import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from malletrain.common.launch_file import Launch
from malletrain.supervisor.backends import choose_backend
from malletrain.supervisor.context import read_launch
from tests.supervisor.running import supervised
from tests.support.waiting import wait_until

SCRIPT = Path(__file__).with_name("plain_horovod.py")


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.horovod
@pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="needs Horovod in this environment")
def test_it_trains_as_one_world_and_goes_on_from_its_own_checkpoint_at_a_change(tmp_path: Path) -> None:
    with supervised(tmp_path, "n1", "n2", command=[sys.executable, str(SCRIPT)]) as job:
        # Two workers import torch and Horovod, and on a busy machine one of them begins alone.
        wait_until(lambda: job.state().confirmed_sequence >= 1, 180, "a world of two")
        job.wait_batch(2)
        job.rescale("n2")
        job.stop(grace=20)
        assert job.outcome()["outcome"] == "STOPPED"
        steps = [batch["step"] for batch in job.batches()]
        starts = [(line["rank"], line["size"]) for line in job.lines() if line["event"] == "start"]
    assert {(0, 2), (1, 2)} <= set(starts), "one world of two"
    assert starts[-1] == (0, 1)
    assert all(later == earlier + 1 for earlier, later in pairwise(steps)), "each step once, none skipped"
    assert "hvd.elastic.run" in (tmp_path / "supervisor.log").read_text()


def launch(folder: Path, source: str, backend: str, *, named: bool) -> Launch:
    (folder / "train.py").write_text(source)
    return Launch(
        job_id="j000001",
        backend=backend,
        backend_named=named,
        command=("python", "train.py"),
        working_directory=str(folder),
        environment={},
        slots_per_node=1,
        socket="",
        sequence=1,
        hosts={"n1": 1, "n2": 1},
        max_nodes=2,
    )


@pytest.mark.parametrize(
    ("source", "backend", "named", "chosen", "restarts"),
    [
        ("pass", "horovod", False, "command", False),
        ("pass", "horovod", True, "horovod", False),
        ("import horovod.torch as hvd\nhvd.init()", "horovod", True, "horovod", True),
        ("import horovod.torch as hvd\nhvd.init()", "torchrun", False, "horovod", True),
        ("import horovod.torch as hvd\nhvd.init()\nhvd.elastic.run", "horovod", True, "horovod", False),
        ("from torch.distributed import init_process_group", "horovod", False, "torchrun", False),
        ("from malletrain.client import elastic", "torchrun", False, "torchrun", False),
        ("print 1", "horovod", False, "horovod", False),
    ],
)
def test_a_job_that_names_no_backend_gets_that_of_its_script(
    tmp_path: Path, source: str, backend: str, named: bool, chosen: str, restarts: bool
) -> None:
    choice = choose_backend(launch(tmp_path, source, backend, named=named))
    assert (choice.launch.backend, choice.restarts) == (chosen, restarts)


def test_a_launch_of_an_earlier_version_names_its_backend(tmp_path: Path) -> None:
    raw = {
        "job_id": "j000001",
        "backend": "horovod",
        "command": ["sleep", "1"],
        "working_directory": "/",
        "environment": {},
        "slots_per_node": 1,
        "socket": "s",
        "sequence": 1,
        "hosts": [{"name": "n1", "slots": 1}],
    }
    (tmp_path / "launch.json").write_text(json.dumps(raw))
    assert choose_backend(read_launch(tmp_path)).launch.backend == "horovod"
