"""Elastic trainings for real: processes, Gloo, kills."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from pathlib import Path

import grpc
import psutil
import pytest

from malletrain.v1 import supervisor_pb2
from tests.supervisor.running import PATIENCE, SIZE, TRAINER, Supervised, supervised
from tests.support.waiting import wait_until

pytest.importorskip("horovod.torch", reason="needs Horovod: run deploy/install-horovod.sh")
pytestmark = [pytest.mark.long, pytest.mark.horovod, pytest.mark.timeout(240)]


def check_samples(job: Supervised) -> None:
    """Between rollbacks the counter grows batch by batch, and all workers' shares together are the epoch's order."""
    kept = kept_batches(job)
    for earlier, later in itertools.pairwise(kept):
        assert later["before"] == earlier["before"] + earlier["size"] * len(earlier["indices"])


def kept_batches(job: Supervised) -> list[dict[str, object]]:
    """Rank 0's batches less those that a rollback undid."""
    kept: list[dict[str, object]] = []
    for batch in job.batches():
        while kept and kept[-1]["before"] >= batch["before"]:
            kept.pop()
        kept.append(batch)
    return kept


def test_a_job_grows_shrinks_moves_and_loses_nodes(tmp_path: Path) -> None:
    with supervised(tmp_path / "job", "n1") as job:
        job.wait_confirmed()
        first = job.wait_batch(1)
        survivor = job.pids()["n1"]

        job.rescale("n1", "n2", "n3")
        assert job.pids()["n1"] == survivor
        assert job.wait_batch(3)["rate"] == pytest.approx(3 * first["rate"])

        job.rescale("n2", "n1")
        assert job.pids()["n1"] == survivor
        wait_until(lambda: not job.processes("n3"), PATIENCE, "no process on n3")

        # Two commands within 100 ms; the second one counts.
        job.command("n1", "n2", "n4")
        job.rescale("n1", "n4")
        assert set(job.state().confirmed_hosts) == {"n1", "n4"}

        # The node of rank 0 is taken, with notice: nothing is lost.
        before = job.wait_batch(2)
        state = job.release("n1", grace=5.0)
        assert job.processes("n1") == []
        assert list(state.confirmed_hosts) in ([], ["n4"])
        assert job.wait_batch(1)["before"] >= before["before"]

        # It may come back at once.
        job.rescale("n4", "n1")

        # All hosts are replaced.
        job.rescale("n5", "n6")
        assert set(job.pids()) == {"n5", "n6"}
        check_samples(job)


def test_a_node_killed_without_notice_costs_no_more_than_the_last_commit(tmp_path: Path) -> None:
    with supervised(tmp_path / "job", "n1", "n2", "n3", environment={"HOROVOD_GLOO_TIMEOUT_SECONDS": "600"}) as job:
        job.wait_confirmed()
        wait_until(lambda: any(batch["before"] > 3000 for batch in job.batches()), PATIENCE, "some commits")
        survivors = {job.pids()[host] for host in ("n1", "n2")}
        job.release("n3", grace=0.0)
        assert job.processes("n3") == []
        batch = job.wait_batch(2)
        assert batch["before"] > 0
        first_again = next(entry for entry in job.batches() if entry["size"] == 2)
        lost = [
            entry["time"] for entry in job.batches() if entry["size"] == 3 and entry["before"] >= first_again["before"]
        ]
        # Commits are a second apart.
        assert not lost or lost[-1] - lost[0] < 3.0
        assert {job.pids()[host] for host in ("n1", "n2")} == survivors

        # A worker that dies by itself is started again.
        os.kill(job.pids()["n2"], signal.SIGKILL)
        job.wait_batch(2)
        wait_until(lambda: set(job.state().confirmed_hosts) == {"n1", "n2"}, PATIENCE, "both hosts")
        check_samples(job)


def test_a_stop_saves_and_a_new_supervisor_goes_on_from_there(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with supervised(folder, "n1", "n2") as job:
        job.wait_confirmed()
        job.wait_batch(2)
        job.stop(grace=10.0)
        assert job.outcome() == {"outcome": "STOPPED", "message": ""}
        last = job.batches()[-1]
        assert job.processes() == []
    with supervised(folder, "n7") as job:
        job.wait_confirmed()
        batch = job.wait_batch(1)
        starts = [line for line in job.lines() if line["event"] == "start" and line["samples"]]
        assert starts[-1]["samples"] == last["before"] + 2 * len(last["indices"])
        assert batch["loss"] < job.batches()[0]["loss"]
        check_samples(job)


def test_a_kept_supervisor_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    with supervised(tmp_path / "job", "n1", "n2") as job:
        job.wait_confirmed()
        job.wait_batch(2)
        assert job.stop(grace=10.0, keep=60.0).phase == supervisor_pb2.SUPERVISOR_PHASE_KEPT
        assert job.processes() == []
        last = job.batches()[-1]
        job.rescale("n3")
        starts = [line for line in job.lines() if line["event"] == "start" and line["samples"]]
        assert starts[-1]["samples"] == last["before"] + 2 * len(last["indices"])
        job.rescale("n3", "n1")
        check_samples(job)


@pytest.mark.training
def test_all_nodes_taken_at_once_leaves_a_checkpoint(tmp_path: Path) -> None:
    with supervised(tmp_path / "job", "n1", "n2") as job:
        job.wait_confirmed()
        job.wait_batch(2)
        job.release("n1", "n2", grace=5.0)
        assert job.processes() == []
        assert job.outcome()["outcome"] == "STOPPED"
        assert list((tmp_path / "job/checkpoints").glob("samples-*.pt"))


def test_a_training_that_completes_says_so_and_sees_each_sample_once(tmp_path: Path) -> None:
    epochs = 10
    wanted = epochs * SIZE
    with supervised(tmp_path / "job", "n1", environment={"TEST_SAMPLES": str(wanted)}) as job:
        job.wait_confirmed()
        job.rescale("n1", "n2")
        assert job.outcome()["outcome"] == "EXITED"
        completed = json.loads((tmp_path / "job/completed.json").read_text())
        assert completed["samples"] >= wanted
        check_samples(job)
        seen: dict[int, int] = {}
        for line in job.lines():
            if line["event"] == "batch":
                first = line["before"] + line["rank"] * len(line["indices"])
                numbered = dict(enumerate(line["indices"], start=first))
                assert not seen.keys() & numbered.keys(), "a sample was trained on twice"
                seen |= numbered
        for epoch in range(epochs):
            order = [seen[number] for number in range(epoch * SIZE, (epoch + 1) * SIZE)]
            assert sorted(order) == list(range(SIZE))


def test_a_killed_supervisor_leaves_no_worker(tmp_path: Path) -> None:
    with supervised(tmp_path / "job", "n1", "n2") as job:
        job.wait_confirmed()
        workers = [psutil.Process(pid) for pid in job.pids().values()]
        os.kill(job.process.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(workers, timeout=10)
        assert alive == []
        wait_until(lambda: not job.processes(), 10, "no process of the job")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["python", "-c", "import sys; sys.exit(3)"], "exit status 3"),
        (["python", "not-there.py"], "exit status"),
        (["/not/there"], "exit status"),
    ],
)
def test_a_command_that_fails_at_once_is_a_failure(tmp_path: Path, command: list[str], message: str) -> None:
    with supervised(tmp_path / "job", "n1", command=command) as job:
        outcome = job.outcome()
        assert outcome["outcome"] == "FAILED"
        assert message in outcome["message"]
        assert job.processes() == []


WRAPPER = "import subprocess, sys\nsys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))\n"


@pytest.mark.parametrize("kind", [pytest.param("wrapper", marks=pytest.mark.training), "shell"])
def test_a_trainer_may_be_started_by_something_else(tmp_path: Path, kind: str) -> None:
    wrapper = tmp_path / "wrapper.py"
    wrapper.write_text(WRAPPER)
    commands = {
        "wrapper": [sys.executable, str(wrapper), str(TRAINER)],
        "shell": ["/bin/sh", "-c", f"exec {sys.executable} {TRAINER}"],
    }
    with supervised(tmp_path / "job", "n1", command=commands[kind]) as job:
        job.wait_confirmed()
        survivor = job.pids()["n1"]
        job.rescale("n1", "n2")
        assert job.pids()["n1"] == survivor
        check_samples(job)


def test_two_slots_on_a_node_are_two_workers(tmp_path: Path) -> None:
    with supervised(tmp_path / "job", "n1", slots=2) as job:
        job.wait_confirmed()
        assert job.wait_batch(2)["size"] == 2
        assert len(job.state().workers) == 2
        wrong = supervisor_pb2.SetHostsRequest(sequence=9, hosts=[supervisor_pb2.Host(name="n1", slots=3)])
        with pytest.raises(grpc.RpcError, match=r"hosts\[0\].slots: expected 2"):
            job.stub.SetHosts(wrong, timeout=10)
        job.stop(grace=5.0)
        assert job.outcome()["outcome"] == "STOPPED"
