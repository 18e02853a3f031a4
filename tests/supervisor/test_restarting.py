"""Jobs whose workers are restarted at every change: real supervisors, real torch.distributed, real programs."""

from __future__ import annotations

import os
import signal
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from malletrain.common.job_limits import JobLimits
from malletrain.supervisor.rendezvous.connection_filters import RendezvousConfig
from malletrain.supervisor.restarting.torchrun_backend import TorchrunBackend
from malletrain.v1 import supervisor_pb2
from tests.supervisor.running import Supervised, supervised
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

PLAIN = [sys.executable, str(Path(__file__).with_name("plain_trainer.py"))]
PROGRAM = Path(__file__).with_name("program.sh")


def steps(job: Supervised) -> list[int]:
    """Steps of rank 0, in order of time."""
    return [batch["step"] for batch in job.batches()]


def test_an_unchanged_torchrun_script_grows_and_shrinks_without_losing_a_step(tmp_path: Path) -> None:
    with supervised(tmp_path, "n1", command=PLAIN, backend="torchrun") as job:
        job.wait_batch(1)
        job.rescale("n1", "n2")
        job.rescale("n2")
        job.stop(grace=10)
        assert job.outcome()["outcome"] == "STOPPED"
        done = steps(job)
        assert done == list(range(1, len(done) + 1)), "each step once, none skipped"
        starts = [line for line in job.lines() if line["event"] == "start" and line["rank"] == 0]
        assert [line["restart"] for line in starts] == [0, 1, 2]
        assert not job.processes()


def test_a_killed_worker_sends_its_job_back_to_the_checkpoint_and_no_further(tmp_path: Path) -> None:
    with supervised(tmp_path, "n1", "n2", command=PLAIN, backend="torchrun") as job:
        wait_until(lambda: len(steps(job)) > 30, 60, "30 steps")
        before = job.pids()
        os.kill(before["n2"], signal.SIGKILL)
        wait_until(lambda: not set(before.values()) & set(job.pids().values()), 60, "new workers")
        job.wait_batch(2)
        done = steps(job)
        # Nothing is done again where the worker was killed just after a checkpoint.
        again = [last - step for last, step in pairwise(done) if step <= last]
        assert len(again) <= 1
        assert all(steps_back < 20 for steps_back in again), "at most what came after the last checkpoint"
        assert set(done) == set(range(1, max(done) + 1))


def test_a_node_is_clean_when_its_release_is_answered(tmp_path: Path) -> None:
    with supervised(tmp_path, "n1", "n2", command=PLAIN, backend="torchrun") as job:
        job.wait_batch(2)
        state = job.release("n1", grace=5)
        assert not job.processes("n1")
        assert [host.name for host in state.commanded_hosts] == ["n2"]
        job.wait_batch(1)
        job.command("n1", "n2")
        job.wait_batch(2)
        job.release("n2", grace=0)
        assert not job.processes("n2")
        job.wait_batch(1)


def test_without_hosts_it_stays_for_the_next_ones(tmp_path: Path) -> None:
    with supervised(tmp_path, "n1", "n2", command=PLAIN, backend="torchrun", keep_seconds=60) as job:
        job.wait_batch(2)
        state = job.stop(grace=10, keep=60)
        assert state.phase == supervisor_pb2.SUPERVISOR_PHASE_KEPT
        assert not any((state.commanded_hosts, state.confirmed_hosts, state.workers, job.processes()))
        stale = supervisor_pb2.SetHostsRequest(sequence=1, hosts=[supervisor_pb2.Host(name="n1", slots=1)])
        assert not job.stub.SetHosts(stale, timeout=10).state.commanded_hosts, "it was sent before the stop"
        job.rescale("n3")
        state = job.release("n3", grace=10)
        assert state.phase == supervisor_pb2.SUPERVISOR_PHASE_STOPPING, "the stop follows"
        assert not job.processes()
        assert job.stop(grace=10, keep=60).phase == supervisor_pb2.SUPERVISOR_PHASE_KEPT
        job.rescale("n1", "n3")
        done = steps(job)
        assert done == list(range(1, len(done) + 1)), "each step once, none skipped"
        earlier = supervisor_pb2.StopRequest(grace_seconds=1, keep_seconds=60, sequence=1)
        assert job.stub.Stop(earlier, timeout=10).state.phase == supervisor_pb2.SUPERVISOR_PHASE_RUNNING
        job.stop(grace=10, keep=60)
        job.stop(grace=10)
        assert job.outcome()["outcome"] == "STOPPED"


def test_it_stays_no_longer_than_it_was_told(tmp_path: Path) -> None:
    with supervised(tmp_path, "n1", command=["sleep", "60"], backend="command") as job:
        wait_until(job.processes, 30, "the program")
        assert job.stop(grace=1, keep=0.1).phase == supervisor_pb2.SUPERVISOR_PHASE_KEPT
        assert job.outcome() == {"outcome": "STOPPED", "message": "it got no nodes any more"}


def test_a_training_that_is_complete_keeps_nothing(tmp_path: Path) -> None:
    script = "trap 'touch $MALLETRAIN_JOB_DIR/completed.json; exit 0' TERM; touch trapped; sleep 60 & wait"
    with supervised(tmp_path, "n1", command=["/bin/sh", "-c", script], backend="command") as job:
        wait_until((tmp_path / "trapped").exists, 30, "the program")
        job.stop(grace=5, keep=60)
        assert job.outcome()["outcome"] == "STOPPED"


def test_a_script_that_fails_each_time_fails_for_good(tmp_path: Path) -> None:
    with supervised(tmp_path, "n1", command=["/bin/sh", "-c", "exit 3"], backend="torchrun") as job:
        outcome = job.outcome()
    assert outcome["outcome"] == "FAILED"
    assert "exit status 3" in outcome["message"]


def test_a_training_that_ends_is_over(tmp_path: Path) -> None:
    with supervised(tmp_path, "n1", "n2", command=PLAIN, backend="torchrun", environment={"TEST_STEPS": "40"}) as job:
        assert job.outcome()["outcome"] == "EXITED"
        assert max(steps(job)) == 40
        assert not job.processes()


def test_any_program_reads_its_hosts_from_a_file_and_is_started_anew(tmp_path: Path) -> None:
    log = tmp_path / "program.log"

    def said() -> list[str]:
        return log.read_text().splitlines() if log.exists() else []

    with supervised(tmp_path, "n1", "n2", command=["/bin/sh", str(PROGRAM)], backend="command", slots=2) as job:
        wait_until(lambda: "hosts n1 slots=2,n2 slots=2, generation 1" in said(), 30, "the first start")
        job.command("n1", "n2", "n3", slots=2)
        wait_until(lambda: said()[-1] == "hosts n1 slots=2,n2 slots=2,n3 slots=2, generation 2", 30, "the second start")
        assert said()[1] == "saved", "it was asked, and ended, before it was started again"
        job.release("n1", grace=5)
        assert not job.processes("n1")
        wait_until(lambda: said()[-1] == "hosts n2 slots=2,n3 slots=2, generation 3", 30, "the third start")
        job.release("n3", grace=0)
        wait_until(lambda: said()[-1] == "hosts n2 slots=2, generation 4", 30, "the fourth start")
        job.stop(grace=5)
        assert job.outcome()["outcome"] == "STOPPED"
    assert said()[-1] == "saved"


def test_a_program_that_ends_well_is_done(tmp_path: Path) -> None:
    with supervised(
        tmp_path, "n1", command=["/bin/sh", "-c", "cat $MALLETRAIN_HOSTFILE > seen"], backend="command"
    ) as job:
        assert job.outcome()["outcome"] == "EXITED"
    assert (tmp_path / "seen").read_text() == "n1 slots=1\n"


@pytest.mark.parametrize("backend", ["torchrun", "command"])
def test_a_program_that_is_not_there_fails_with_its_name(tmp_path: Path, backend: str) -> None:
    with supervised(tmp_path, "n1", command=["/no/such/program"], backend=backend) as job:
        assert job.outcome()["outcome"] == "FAILED"


def test_a_failure_of_the_script_ends_it_at_once_and_names_where_and_why(tmp_path: Path) -> None:
    script = '[ "$MALLETRAIN_NODE" = n2 ] && { echo "no data"; exit 3; }; exec sleep 600'
    with supervised(tmp_path, "n1", "n2", command=["/bin/sh", "-c", script], backend="torchrun") as job:
        outcome = job.outcome()
        assert outcome["outcome"] == "FAILED"
        assert outcome["message"] == "worker on n2: exit status 3: no data"
        failure = outcome["failure"]
        assert (failure["host"], failure["scale"], failure["count"], failure["by_script"]) == ("n2", 2, 1, True)
        assert failure["log"] == ["no data"]
        assert not job.processes()


def test_a_worker_that_is_killed_again_and_again_is_started_as_often_as_the_job_may_be(tmp_path: Path) -> None:
    script = "echo start >> $MALLETRAIN_JOB_DIR/starts; kill -9 $$"
    with supervised(tmp_path, "n1", command=["/bin/sh", "-c", script], backend="command", restarts_left=2) as job:
        outcome = job.outcome()
        assert outcome["message"] == "worker on n1: killed by signal 9"
        assert (outcome["failure"]["count"], outcome["failure"]["by_script"]) == (3, False)
    assert (tmp_path / "starts").read_text().split() == ["start"] * 3


def test_gloo_and_nccl_go_by_the_interfaces_of_the_operator() -> None:
    variables = TorchrunBackend("j000001", RendezvousConfig("10.0.0.1", ("hsn0", "hsn1"), lambda *_: True)).defaults()
    assert variables["GLOO_SOCKET_IFNAME"] == variables["NCCL_SOCKET_IFNAME"] == "hsn0,hsn1"


@pytest.mark.parametrize(
    ("limits", "seconds"), [(JobLimits(), "300"), (JobLimits(step_seconds=20.0, evaluation_seconds=900.5), "901")]
)
def test_workers_wait_for_each_other_as_long_as_the_job_lets_one_of_them_be_at_something(
    limits: JobLimits, seconds: str
) -> None:
    config = RendezvousConfig("10.0.0.1", ("lo",), lambda *_: True)
    assert TorchrunBackend("j000001", config, limits).defaults()["MALLETRAIN_COLLECTIVE_SECONDS"] == seconds
