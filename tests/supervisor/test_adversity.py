"""What must not end a training, nor leave anything behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.supervisor.running import PATIENCE, Supervised, supervised
from tests.support.waiting import wait_until

pytest.importorskip("horovod.torch", reason="needs Horovod: run deploy/install-horovod.sh")
pytestmark = [pytest.mark.long, pytest.mark.horovod, pytest.mark.timeout(120)]

LONG = pytest.mark.training
"""What is rarer, or like another test, is left to the long ones."""
IMPATIENT = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "3"}
PATIENT = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "600"}
"""Far longer than any test: whoever waits for it fails."""


def assert_replaced(job: Supervised, before: dict[str, int], victim: str) -> None:
    """The victim's worker is another one; those of the others are not.

    But for one, perhaps: Gloo at times misses that its connections have ended, and such a worker is given up.
    """
    now = job.pids()
    replaced = {host for host in now if now[host] != before[host]}
    assert victim in replaced, job.said
    deaf = replaced - {victim}
    assert len(deaf) <= 1, job.said
    assert all(f"on {host} is hung: killed" in job.said for host in deaf), job.said


def saved_samples(job: Supervised) -> int:
    names = sorted((job.folder / "checkpoints").glob("samples-*.pt"))
    return int(names[-1].stem.removeprefix("samples-")) if names else 0


def test_the_only_node_is_taken_while_its_successor_boots(tmp_path: Path) -> None:
    with supervised(tmp_path / "job", "n1") as job:
        job.wait_confirmed()
        before = job.wait_batch(1)["before"]
        job.command("n1", "n2")
        state = job.release("n1", grace=5.0)
        assert job.processes("n1") == []
        assert [host.name for host in state.commanded_hosts] == ["n2"]
        batch = job.wait_batch(1)
        assert batch["pid"] == job.pids()["n2"]
        first = next(line for line in job.batches() if line["pid"] == batch["pid"])
        assert first["before"] >= before
        wait_until(lambda: list(job.state().confirmed_hosts) == ["n2"], PATIENCE, "n2")


@LONG
def test_the_only_node_is_taken_without_notice_while_its_successor_boots(tmp_path: Path) -> None:
    with supervised(tmp_path / "job", "n1") as job:
        job.wait_confirmed()
        wait_until(lambda: saved_samples(job) > 0, PATIENCE, "a checkpoint")
        job.command("n1", "n2")
        job.release("n1", grace=0.0)
        saved = saved_samples(job)
        job.wait_batch(1)
        first = next(line for line in job.batches() if line["pid"] == job.pids()["n2"])
        assert first["before"] == saved


def test_a_new_worker_that_never_got_the_state_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    with supervised(tmp_path / "job", "n1", environment={**IMPATIENT, "TEST_SYNC_SECONDS": "20"}) as job:
        job.wait_confirmed()
        wait_until(lambda: saved_samples(job) > 0, PATIENCE, "a checkpoint")
        job.command("n1", "n2")
        wait_until(lambda: any(line["event"] == "sync" for line in job.lines()), PATIENCE, "the synchronisation")
        job.release("n1", grace=0.0)
        saved = saved_samples(job)
        job.wait_batch(1)
        new_worker = job.pids()["n2"]
        first = next(line for line in job.batches() if line["pid"] == new_worker)
        assert first["before"] >= saved > 0


def test_one_of_two_workers_of_the_only_node_dies(tmp_path: Path) -> None:
    with supervised(tmp_path / "job", "n1", slots=2, environment=IMPATIENT) as job:
        job.wait_confirmed()
        job.wait_batch(2)
        os.kill(job.state().workers[0].pid, signal.SIGKILL)
        outcome = job.outcome()
        assert outcome["outcome"] == "FAILED"
        assert "worker on n1: killed by signal 9" in outcome["message"]
        assert job.processes() == []


@LONG
def test_a_worker_that_dies_at_the_rendezvous_does_not_keep_the_supervisor(tmp_path: Path) -> None:
    with supervised(tmp_path / "job", "n1", "n2", environment=IMPATIENT) as job:
        job.wait_confirmed()
        job.wait_batch(2)
        pids = job.pids()
        os.kill(pids["n2"], signal.SIGSTOP)
        # n1 gives up on n2, and waits at the rendezvous for it.
        wait_until(lambda: not job.state().confirmed_hosts, PATIENCE, "n1 at the rendezvous")
        os.kill(pids["n1"], signal.SIGKILL)
        wait_until(lambda: job.pids().get("n1") != pids["n1"], PATIENCE, "the end of n1")
        job.stop(grace=0.0)
        # Unless n2 has been found to be hung before that.
        assert job.outcome()["outcome"] in ("STOPPED", "FAILED")
        assert job.processes() == []


def test_new_workers_have_the_same_weights(tmp_path: Path) -> None:
    with supervised(tmp_path / "job", "n1") as job:
        job.wait_confirmed()
        job.wait_batch(1)
        job.rescale("n1", "n2", "n3")
        job.wait_batch(3)
        weights: dict[int, set[float]] = {}
        for line in job.lines():
            if line["event"] == "batch" and line["size"] == 3:
                weights.setdefault(line["before"], set()).add(line["weight"])
        assert weights
        assert [found for found in weights.values() if len(found) > 1] == []


def test_nothing_listens_off_loopback(tmp_path: Path) -> None:
    with supervised(tmp_path / "job", "n1") as job:
        job.wait_confirmed()
        listening = [
            entry.laddr.ip
            for entry in psutil.Process(job.process.pid).net_connections("inet")
            if entry.status == psutil.CONN_LISTEN
        ]
        assert set(listening) == {"127.0.0.1"}


def test_a_killed_supervisor_leaves_not_even_what_its_workers_have_started(tmp_path: Path) -> None:
    with supervised(tmp_path / "job", "n1", environment={"TEST_CHILD": "1"}) as job:
        job.wait_confirmed()
        job.wait_batch(1)
        assert len(job.processes()) >= 2
        os.kill(job.process.pid, signal.SIGKILL)
        wait_until(lambda: not job.processes(), 10, "no process of the job")


@LONG
def test_a_new_worker_with_much_to_do_before_it_joins_does_not_break_the_others(tmp_path: Path) -> None:
    with supervised(tmp_path / "job", "n1", environment={**IMPATIENT, "TEST_BOOT_SECONDS": "6"}) as job:
        job.wait_confirmed()
        survivor = job.pids()["n1"]
        job.wait_batch(1)
        job.rescale("n1", "n2")
        assert job.pids()["n1"] == survivor


@pytest.mark.parametrize("victim", ["n1", pytest.param("n2", marks=LONG), pytest.param("n3", marks=LONG)])
def test_survivors_do_not_wait_for_a_time_out(tmp_path: Path, victim: str) -> None:
    with supervised(tmp_path / "job", "n1", "n2", "n3", environment=PATIENT) as job:
        job.wait_confirmed()
        job.wait_batch(3)
        pids = job.pids()
        os.kill(pids[victim], signal.SIGKILL)
        job.wait_batch(2)
        # It is started again, and joins.
        wait_until(lambda: set(job.state().confirmed_hosts) == {"n1", "n2", "n3"}, PATIENCE, "all three")
        after = job.wait_batch(3)
        assert after["before"] > 0
        assert_replaced(job, pids, victim)


@LONG
def test_two_workers_that_die_together_are_one_loss(tmp_path: Path) -> None:
    with supervised(tmp_path / "job", "n1", "n2", "n3", "n4", environment=PATIENT) as job:
        job.wait_confirmed()
        job.wait_batch(4)
        pids = job.pids()
        for host in ("n1", "n3"):
            os.kill(pids[host], signal.SIGKILL)
        job.rescale("n2", "n4")
        assert {host: job.pids()[host] for host in ("n2", "n4")} == {host: pids[host] for host in ("n2", "n4")}


@pytest.mark.parametrize("victim", ["n1", pytest.param("n2", marks=LONG)])
def test_a_worker_that_hangs_is_replaced(tmp_path: Path, victim: str) -> None:
    with supervised(tmp_path / "job", "n1", "n2", "n3", environment=PATIENT) as job:
        job.wait_confirmed()
        job.wait_batch(3)
        pids = job.pids()
        os.kill(pids[victim], signal.SIGSTOP)
        wait_until(lambda: job.pids().get(victim, pids[victim]) != pids[victim], PATIENCE, "another worker")
        wait_until(lambda: set(job.state().confirmed_hosts) == {"n1", "n2", "n3"}, PATIENCE, "all three")
        job.wait_batch(3)
        assert_replaced(job, pids, victim)


@LONG
def test_a_new_worker_that_hangs_while_it_boots_is_replaced(tmp_path: Path) -> None:
    with supervised(tmp_path / "job", "n1", environment=PATIENT) as job:
        job.wait_confirmed()
        job.command("n1", "n2")
        new_worker = wait_until(lambda: job.pids().get("n2"), PATIENCE, "the new worker")
        os.kill(new_worker, signal.SIGSTOP)
        survivor = job.pids()["n1"]
        job.wait_confirmed()
        job.wait_batch(2)
        assert job.pids()["n1"] == survivor
        assert job.pids()["n2"] != new_worker


@LONG
def test_a_new_worker_that_dies_while_it_joins_costs_the_others_nothing(tmp_path: Path) -> None:
    environment = {**PATIENT, "TEST_DIES_JOINING": "n3"}
    with supervised(tmp_path / "job", "n1", "n2", environment=environment) as job:
        job.wait_confirmed()
        job.wait_batch(2)
        pids = job.pids()
        job.rescale("n1", "n2", "n3")
        assert (job.folder / "died").exists()
        assert {host: job.pids()[host] for host in pids} == pids


@LONG
def test_a_node_that_is_taken_while_it_joins_does_not_break_the_others(tmp_path: Path) -> None:
    with supervised(tmp_path / "job", "n1", "n2", environment=PATIENT) as job:
        job.wait_confirmed()
        job.wait_batch(2)
        pids = job.pids()
        job.command("n1", "n2", "n3")
        wait_until(lambda: "group 2: " in (job.folder / "supervisor.log").read_text(), PATIENCE, "the new group")
        job.release("n3", grace=0.0)
        assert job.processes("n3") == []
        job.wait_batch(2)
        assert job.pids() == pids


@LONG
def test_a_job_whose_only_worker_hangs_fails_so_that_it_can_be_restarted(tmp_path: Path) -> None:
    with supervised(tmp_path / "job", "n1", environment=PATIENT) as job:
        job.wait_confirmed()
        job.wait_batch(1)
        os.kill(job.pids()["n1"], signal.SIGSTOP)
        outcome = job.outcome()
        assert (outcome["outcome"], outcome["message"]) == ("FAILED", "worker on n1: hung, killed")
        assert job.processes() == []
