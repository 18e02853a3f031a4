"""On which device a worker trains, whether workers share a GPU, and how long they wait for each other."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("torch", reason="needs torch")

import torch
import torch.distributed as dist

from malletrain.client.devices import AppliedSteps, group_backend, local_rank, share_gpus
from malletrain.client.job_context import read_collective_seconds, read_workers_per_replica


@pytest.mark.parametrize(
    ("environ", "expected"),
    [({}, 0), ({"LOCAL_RANK": "3"}, 3), ({"HOROVOD_LOCAL_RANK": "2"}, 2), ({"LOCAL_RANK": "x"}, 0)],
)
def test_the_launcher_says_which_worker_of_its_host_one_is(environ: dict[str, str], expected: int) -> None:
    assert local_rank(environ) == expected


def test_a_gpu_is_shared_where_two_workers_have_the_same_one() -> None:
    assert share_gpus(["a/0:1:0", "b/0:1:0", "a/0:1:0"])
    assert not share_gpus(["a/0:1:0", "b/0:1:0", "a/0:2:0"])
    assert not share_gpus(["", "", ""]), "none has one"


def test_workers_on_cpus_have_the_default_backends() -> None:
    store, found = dist.HashStore(), list[str | None]()

    def ask(rank: int) -> None:
        found.append(group_backend(store, rank, 3, torch.device("cpu")))

    threads = [threading.Thread(target=ask, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [None] * 3


def test_on_a_cpu_a_step_is_done_when_it_has_been_made() -> None:
    steps = AppliedSteps(torch.nn.Linear(2, 2))
    steps.note()
    assert steps.wait(0.0)


def test_the_job_says_how_long_workers_wait_for_each_other() -> None:
    assert read_collective_seconds({}) == 300.0
    assert read_collective_seconds({"MALLETRAIN_COLLECTIVE_SECONDS": "20"}) == 20.0
    for given in ("0", "-1", "2.5", "soon"):
        with pytest.raises(ValueError, match=rf"^MALLETRAIN_COLLECTIVE_SECONDS: expected .*, got '{given}'$"):
            read_collective_seconds({"MALLETRAIN_COLLECTIVE_SECONDS": given})


def test_the_job_says_how_many_workers_a_replica_has() -> None:
    name, slots = "MALLETRAIN_NODES_PER_REPLICA", "MALLETRAIN_SLOTS_PER_NODE"
    assert read_workers_per_replica({slots: "4"}) == 0
    assert read_workers_per_replica({name: "2"}) == 2
    assert read_workers_per_replica({name: "2", slots: "4"}) == 8
    with pytest.raises(ValueError, match=rf"^{name}: expected .*, got '0'$"):
        read_workers_per_replica({name: "0"})
