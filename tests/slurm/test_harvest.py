"""Trainings on what a real Slurm leaves idle, while Slurm wants nodes back and everything is killed in turn."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from benchmarks.impact.harvest import PLACEHOLDER, Harvest, harvest
from malletrain.cli.demo.job_processes import find_job_processes
from malletrain.v1 import resources_pb2, scavenger_pb2
from tests.slurm.cluster import Cluster, cluster, missing
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]

NODES = 8
TRAINER = Path(__file__).parents[1] / "supervisor" / "trainer.py"
PATIENCE = 180.0
SCALE = 2
SEEN_LATER = 0.5
"""The watcher looks every 0.04 s, when it gets a core; the main job starts within some hundredths of an agent's end."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    pytest.importorskip("horovod.torch", reason="needs Horovod: run deploy/install-horovod.sh")
    if reason := missing():
        pytest.skip(reason)
    with cluster(tmp_path_factory.mktemp("slurm"), NODES) as running:
        yield running


@pytest.fixture
def running(slurm: Cluster, tmp_path: Path) -> Iterator[Harvest]:
    with harvest(tmp_path / "harvest", slurm) as found:
        yield found
    assert not find_job_processes(tmp_path / "harvest")
    assert not found.watcher.look(), "no process of ours is left on any node"
    assert not slurm.jobs(PLACEHOLDER)


def test_a_node_is_given_back_before_the_main_job_starts_and_taken_again_after_it(
    slurm: Cluster, running: Harvest, tmp_path: Path
) -> None:
    running.submit(SCALE)
    wait_until(lambda: confirmed(running) == SCALE, PATIENCE, "a training on two nodes")
    held = held_nodes(slurm)
    assert len(held) == SCALE
    stamp = tmp_path / "main"
    slurm.submit(NODES, f"LC_ALL=C\necho $EPOCHREALTIME >{stamp}.part\nmv {stamp}.part {stamp}\nsleep 4")
    wait_until(stamp.exists, PATIENCE, "the main job")
    assert not running.watcher.look(), "the main job has its nodes for itself"
    start = float(stamp.read_text())
    assert all(any(moment < start + SEEN_LATER for moment in running.watcher.empty[node]) for node in held)
    assert set(running.signals()) == set(held), "the agents were told by Slurm"
    before = running.samples()
    wait_until(lambda: confirmed(running) == SCALE, PATIENCE, "the training to be back on two nodes")
    wait_until(lambda: running.samples() > before, PATIENCE, "more samples")
    assert len(held_nodes(slurm)) == SCALE


def test_killed_services_find_their_nodes_again(slurm: Cluster, running: Harvest) -> None:
    running.submit(SCALE, TRAINER, "TEST_SAMPLES=20000")
    wait_until(lambda: slurm.jobs(PLACEHOLDER), PATIENCE, "the first placeholder")
    kill(running, "scavenger")  # it has just submitted one, or is about to
    wait_until(lambda: twice_at_no_time(slurm) and confirmed(running) == SCALE, PATIENCE, "a training on two nodes")
    before = {identifier for identifier, _, _ in slurm.jobs(PLACEHOLDER)}
    assert len(before) == SCALE
    kill(running, *running.deployment.pids())
    wait_until(lambda: confirmed(running) == SCALE or completed(running), PATIENCE, "the training in the new services")
    wait_until(lambda: twice_at_no_time(slurm) and completed(running), PATIENCE, "the end of the training")
    assert {identifier for identifier, _, _ in slurm.jobs(PLACEHOLDER)} <= before, "the placeholders were adopted"
    wait_until(lambda: not slurm.jobs(PLACEHOLDER), PATIENCE, "the nodes to be given back")


def test_a_killed_slurmctld_costs_nobody_anything(slurm: Cluster, running: Harvest) -> None:
    running.submit(SCALE, TRAINER, "TEST_SAMPLES=20000")
    wait_until(lambda: confirmed(running) == SCALE, PATIENCE, "a training on two nodes")
    before = slurm.jobs(PLACEHOLDER)
    slurm.await_stored()  # what slurmctld has forgotten is another case
    slurm.kill_controller()
    samples = running.samples()
    wait_until(lambda: running.samples() > samples, PATIENCE, "training without slurmctld")
    slurm.start_again()
    before_answer = asked(running)[0]
    wait_until(lambda: asked(running) > (before_answer + 2, "") and not asked(running)[1], PATIENCE, "answers of Slurm")
    assert slurm.jobs(PLACEHOLDER) == before
    wait_until(lambda: twice_at_no_time(slurm) and completed(running), PATIENCE, "the end of the training")
    wait_until(lambda: not slurm.jobs(PLACEHOLDER), PATIENCE, "the nodes to be given back")


def held_nodes(slurm: Cluster) -> list[str]:
    return [node for _, state, nodes in slurm.jobs(PLACEHOLDER) if state == "RUNNING" for node in nodes]


def twice_at_no_time(slurm: Cluster) -> bool:
    """True, or a failure: a node that is held twice."""
    counted = Counter(held_nodes(slurm))
    assert all(count == 1 for count in counted.values()), counted
    return True


def answered(ask: Callable[[], list[resources_pb2.Job]]) -> list[resources_pb2.Job]:
    """None while the service is being started again."""
    try:
        return ask()
    except grpc.RpcError:
        return []


def confirmed(running: Harvest) -> int:
    """How many nodes trainings use."""
    return sum(len(job.confirmed_nodes) for job in answered(running.jobs))


def completed(running: Harvest) -> bool:
    jobs = answered(running.jobs)
    assert not any(job.state == resources_pb2.JOB_STATE_FAILED for job in jobs), [job.reason for job in jobs]
    return bool(jobs) and all(job.state == resources_pb2.JOB_STATE_COMPLETED for job in jobs)


def asked(running: Harvest) -> tuple[int, str]:
    """How often Slurm was asked for nodes, and what was wrong with the last answer."""
    peers = running.deployment.stubs
    try:
        status = peers.scavenger.GetStatus(scavenger_pb2.GetStatusRequest(), timeout=PATIENCE)
    finally:
        peers.close()
    nodes = next(query for query in status.queries if query.query == "nodes")
    return nodes.asked, nodes.error


def kill(running: Harvest, *names: str) -> None:
    """kill -9, and wait until `malletrain up` has started them again."""
    before = running.deployment.pids()
    for name in names:
        os.kill(before[name], signal.SIGKILL)
    wait_until(
        lambda: all(running.deployment.pids().get(name, before[name]) != before[name] for name in names),
        PATIENCE,
        f"new {', '.join(names)}",
    )
