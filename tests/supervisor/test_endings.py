"""How trainings end: real supervisors and real processes, most of them shells that know nothing of MalleTrain."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.agent.running import agents
from tests.supervisor.running import Supervised, supervised
from tests.support.certificates import certificate
from tests.support.waiting import wait_until

ELASTIC = [sys.executable, str(Path(__file__).with_name("plain_elastic.py"))]
pytestmark = pytest.mark.long

BACKENDS = [pytest.param("horovod", marks=pytest.mark.horovod), "torchrun", "command"]
GO = 'while [ ! -e "$MALLETRAIN_JOB_DIR/go" ]; do sleep 0.02; done'


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def starts(job: Supervised) -> list[str]:
    """What has started, in order: groups or generations."""
    return [line for line in job.said.splitlines() if re.search(r" (group|generation) \d+: ", line)]


def outcome_so_far(job: Supervised) -> str | None:
    path = job.folder / "outcome.json"
    return json.loads(path.read_text())["outcome"] if path.exists() else None


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("script", ["exit 0", "sleep 1; exit 0"])
def test_a_program_that_ends_with_0_is_done_even_without_any_progress(
    tmp_path: Path, backend: str, script: str
) -> None:
    with supervised(tmp_path, "n1", "n2", command=shell(script), backend=backend) as job:
        assert job.outcome()["outcome"] == "EXITED", job.said
        assert job.outcome()["message"].endswith("on n1 ended with exit status 0")
        assert len(starts(job)) == 1


@pytest.mark.horovod
@pytest.mark.timeout(240)
def test_peers_that_outlive_rank_0_form_no_other_world_and_are_ended(tmp_path: Path) -> None:
    with supervised(tmp_path, "n1", "n2", command=ELASTIC, environment={"TEST_LINGERS": "1"}) as job:
        assert job.outcome()["outcome"] == "EXITED", job.said
        assert "rank 0 of 2: 60 batches" in job.said
        assert len(starts(job)) == 1, job.said
        assert not job.processes()


@pytest.mark.horovod
@pytest.mark.timeout(240)
def test_a_worker_that_ends_early_does_not_end_a_training_that_goes_on(tmp_path: Path) -> None:
    """Its peers lose it in mid training: they go on without it, and rank 0 ends the job."""
    with supervised(tmp_path, "n1", "n2", command=ELASTIC, environment={"TEST_LEAVES": "1"}) as job:
        assert job.outcome()["outcome"] == "EXITED", job.said
        assert (tmp_path / "left").exists()
        assert len(starts(job)) >= 2, job.said
        assert "rank 0 of" in job.said


@pytest.mark.parametrize("backend", BACKENDS)
def test_new_workers_that_never_joined_do_not_hold_up_the_end(tmp_path: Path, backend: str) -> None:
    """A growth that is under way asks rank 0 for nothing: that it ends now is its own doing."""
    with supervised(tmp_path, "n1", command=shell(f"trap '' TERM; {GO}"), backend=backend) as job:
        wait_until(lambda: "n1" in job.pids() and starts(job), 30, "the program")
        job.command("n1", "n2")
        (tmp_path / "go").touch()
        assert job.outcome()["outcome"] == "EXITED", job.said
        assert not job.processes()


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_ends_with_0_when_it_is_told_to_stop_has_left(tmp_path: Path, backend: str) -> None:
    with supervised(tmp_path, "n1", "n2", command=shell(f"trap 'exit 0' TERM; {GO}"), backend=backend) as job:
        wait_until(lambda: starts(job), 30, "the program")
        job.stop(grace=10)
        assert job.outcome()["outcome"] == "STOPPED", job.said


def test_what_ends_with_0_after_a_stop_that_came_through_monitor_has_left(tmp_path: Path) -> None:
    """The client's sidecar leaves word of it before the trainer hears of it."""
    script = 'cd "$MALLETRAIN_JOB_DIR"; [ -e go ] && sleep 600; mkdir -p stop-requests; touch go stop-requests/$$'
    with supervised(tmp_path, "n1", command=shell(script), backend="command") as job:
        wait_until(lambda: len(starts(job)) == 2, 30, "the next generation")
        assert outcome_so_far(job) is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_supervisor_that_is_told_to_end_takes_no_leave_for_an_end(tmp_path: Path, backend: str) -> None:
    """As when an operator's init system signals every process at once."""
    with supervised(tmp_path, "n1", command=shell(f"trap 'exit 0' TERM; {GO}"), backend=backend) as job:
        wait_until(lambda: starts(job), 30, "the program")
        pid = wait_until(lambda: job.pids().get("n1"), 30, "its process")
        os.kill(job.process.pid, signal.SIGTERM)
        os.kill(pid, signal.SIGTERM)
        assert job.outcome()["outcome"] == "STOPPED", job.said


@pytest.mark.parametrize("backend", BACKENDS)
def test_rank_0_that_leaves_with_its_node_is_no_end(tmp_path: Path, backend: str) -> None:
    with supervised(tmp_path, "n1", "n2", command=shell(f"trap 'exit 0' TERM; {GO}"), backend=backend) as job:
        wait_until(lambda: starts(job), 30, "the program")
        pid = wait_until(lambda: job.pids().get("n1"), 30, "rank 0")
        if backend == "horovod":
            # Horovod's workers are asked at the rendezvous, which a shell never visits: the batch system signals it.
            job.command("n2")
            os.kill(pid, signal.SIGTERM)
        else:
            job.release("n1", grace=5)
        wait_until(lambda: not job.processes("n1"), 30, "the end of rank 0")
        if backend != "horovod":
            wait_until(lambda: len(starts(job)) == 2, 60, "the next generation")
        assert outcome_so_far(job) is None, job.said


def test_while_a_training_winds_down_rank_0_is_not_asked_to_make_room(tmp_path: Path) -> None:
    script = f'[ "$RANK" = 0 ] || exit 0; {GO}'
    with supervised(tmp_path, "n1", "n2", command=shell(script), backend="torchrun") as job:
        wait_until(lambda: "n1" in job.pids() and "ended with 0" in job.said, 60, "rank 1's end")
        job.command("n1", "n3")
        wait_until(lambda: "n3" in job.pids(), 30, "the next generation's process")
        assert outcome_so_far(job) is None
        (tmp_path / "go").touch()
        assert job.outcome()["outcome"] == "EXITED", job.said
        assert len(starts(job)) == 1, job.said


def test_rank_0_that_fails_after_its_peers_ended_well_has_failed(tmp_path: Path) -> None:
    script = '[ "$RANK" = 0 ] || exit 0; sleep 0.5; exit 3'
    with supervised(tmp_path, "n1", "n2", command=shell(script), backend="torchrun") as job:
        outcome = job.outcome()
        assert (outcome["outcome"], outcome["message"]) == ("FAILED", "worker on n1: exit status 3"), job.said
        assert len(starts(job)) == 1, job.said


def test_the_end_of_a_training_outlives_a_kill_of_the_supervisor(tmp_path: Path) -> None:
    """The outcome is written when rank 0 has ended, not when the last of its peers has."""
    script = '[ "$RANK" = 0 ] && exit 0; sleep 600'
    with supervised(tmp_path, "n1", "n2", command=shell(script), backend="torchrun") as job:
        wait_until(lambda: outcome_so_far(job) is not None, 60, "the outcome")
        assert job.process.poll() is None, "it still waits for rank 1"
        os.kill(job.process.pid, signal.SIGKILL)
        job.process.wait()
        assert outcome_so_far(job) == "EXITED"
        wait_until(lambda: not job.processes(), 10, "the workers' end")


def test_a_stop_that_comes_after_the_end_changes_nothing(tmp_path: Path) -> None:
    script = '[ "$RANK" = 0 ] && exit 0; sleep 600'
    with supervised(tmp_path, "n1", "n2", command=shell(script), backend="torchrun") as job:
        wait_until(lambda: outcome_so_far(job) is not None, 60, "the outcome")
        began = time.monotonic()
        job.stop(grace=0)
        assert job.outcome()["outcome"] == "EXITED"
        assert time.monotonic() - began < 5, "rank 1 got no longer than the stop allows"


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_rank_0_leaves_behind_may_deliver(tmp_path: Path, backend: str) -> None:
    """As the sidecar does, which has the last batches."""
    script = '(sleep 1; touch "$MALLETRAIN_JOB_DIR/delivered") & exit 0'
    with supervised(tmp_path, "n1", command=shell(script), backend=backend) as job:
        assert job.outcome()["outcome"] == "EXITED"
        assert (tmp_path / "delivered").exists()
        assert not job.processes()


def test_what_rank_0_leaves_behind_on_another_node_may_deliver(tmp_path: Path) -> None:
    script = '(sleep 1; touch "$MALLETRAIN_JOB_DIR/delivered") & exit 0'
    with agents(tmp_path, "n1") as running:
        addresses = {"n1": running["n1"].address}
        folder, shown = tmp_path / "job", certificate(tmp_path, "supervisor")
        with supervised(
            folder, "n1", command=shell(script), backend="command", agents=addresses, certificate_file=shown
        ) as job:
            assert job.outcome()["outcome"] == "EXITED", job.said
            assert (folder / "delivered").exists()
            assert not job.processes()


@pytest.mark.parametrize("backend", [pytest.param("horovod", marks=pytest.mark.horovod), "torchrun"])
def test_workers_that_the_batch_system_signals_have_left(tmp_path: Path, backend: str) -> None:
    """Slurm and PBS may signal the workers of a node that they take back, and scripts agree to stop together.

    All end with 0, rank 0 too, whose node stays: the supervisor has heard from the other node's agent by then.
    """
    script = (
        'cd "$MALLETRAIN_JOB_DIR"; [ -e again ] && sleep 600; '
        "trap 'touch again; exit 0' TERM; while [ ! -e again ]; do sleep 0.02; done"
    )
    with agents(tmp_path, "n1", "n2", grace=5) as running:
        addresses = {node: agent.address for node, agent in running.items()}
        folder, shown = tmp_path / "job", certificate(tmp_path, "supervisor")
        with supervised(
            folder, "n1", "n2", command=shell(script), backend=backend, agents=addresses, certificate_file=shown
        ) as job:
            wait_until(lambda: starts(job), 60, "the program")
            pid = wait_until(lambda: job.pids().get("n2"), 30, "rank 1")
            wait_until(lambda: len(job.processes("n2")) >= 2, 30, "its loop")
            running["n2"].process.send_signal(signal.SIGTERM)
            os.kill(pid, signal.SIGTERM)
            wait_until(lambda: job.said.count("ended with 0") == 2, 30, "the end of both")
            assert outcome_so_far(job) is None, job.said
            job.release("n2", grace=0)
            wait_until(lambda: len(starts(job)) == 2, 60, "another start from the checkpoint")
            assert outcome_so_far(job) is None, job.said


@pytest.mark.horovod
def test_a_script_that_finds_nothing_to_do_before_it_looks_for_the_others_is_done(tmp_path: Path) -> None:
    script = tmp_path / "nothing.py"
    script.write_text("import horovod.torch as hvd\nimport sys\nprint('complete already')\nsys.exit(0)\nhvd.init()\n")
    with supervised(tmp_path, "n1", command=[sys.executable, str(script)]) as job:
        assert job.outcome()["outcome"] == "EXITED", job.said


def test_a_distributed_script_that_finds_nothing_to_do_before_it_looks_for_the_others_is_done(tmp_path: Path) -> None:
    script = tmp_path / "nothing.py"
    script.write_text("import sys\nfrom malletrain.client.distributed import init\nsys.exit(0)\ninit()\n")
    with supervised(tmp_path, "n1", command=[sys.executable, str(script)], backend="torchrun") as job:
        assert job.outcome()["outcome"] == "EXITED", job.said
