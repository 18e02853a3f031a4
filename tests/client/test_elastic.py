from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="needs torch")

from malletrain.client.elastic import module_for
from malletrain.client.job_context import read_batch_per_worker


@pytest.mark.parametrize(
    ("environ", "module"),
    [
        ({}, "malletrain.client.distributed"),
        ({"RANK": "0"}, "malletrain.client.distributed"),
        ({"HOROVOD_RANK": "0"}, "malletrain.client.horovod"),
        ({"HOROVOD_ELASTIC": "1"}, "malletrain.client.horovod"),
        ({"MALLETRAIN_BACKEND": "torchrun", "HOROVOD_RANK": "0"}, "malletrain.client.distributed"),
        ({"MALLETRAIN_BACKEND": "horovod", "RANK": "0"}, "malletrain.client.horovod"),
    ],
)
def test_the_helper_fits_the_launcher(environ: dict[str, str], module: str) -> None:
    assert module_for(environ) == module


def test_a_launcher_without_a_helper_is_named() -> None:
    with pytest.raises(ValueError, match=r"^MALLETRAIN_BACKEND: expected horovod or torchrun, got 'command'$"):
        module_for({"MALLETRAIN_BACKEND": "command"})


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("malletrain.client", ("torch", "horovod", "grpc", "numpy")),
        ("malletrain.client.sidecar", ("torch", "horovod", "numpy")),
        ("malletrain.client.distributed", ("horovod", "grpc")),
    ],
)
def test_each_part_loads_no_more_than_it_needs(module: str, absent: tuple[str, ...]) -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        f"import {module}\n"
        f"print(sorted({set(absent)!r} & (set(sys.modules) - before)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


BATCH = """
import torch
from malletrain.client.elastic import ElasticTraining, init

init()
model = torch.nn.Linear(1, 1)
training = ElasticTraining(model, torch.optim.SGD(model.parameters(), 0.1), dataset_size=64, batch_per_worker=4)
print(len(training.next_indices()))
"""


@pytest.mark.parametrize(("given", "samples"), [("", "4"), ("6", "6")])
def test_the_batch_that_a_job_was_submitted_with_precedes_that_of_the_script(given: str, samples: str) -> None:
    environ = {**os.environ, "MALLETRAIN_BATCH_PER_WORKER": given}
    done = subprocess.run([sys.executable, "-c", BATCH], capture_output=True, text=True, env=environ, check=True)
    assert done.stdout.split() == [samples]


@pytest.mark.parametrize("given", ["0", "-3", "many"])
def test_a_batch_that_is_none_is_named(given: str) -> None:
    expected = rf"^MALLETRAIN_BATCH_PER_WORKER: expected a whole number, at least 1, got '{given}'$"
    with pytest.raises(ValueError, match=expected):
        read_batch_per_worker({"MALLETRAIN_BATCH_PER_WORKER": given})
