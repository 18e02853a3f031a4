"""Profiles in the whole system: five processes, with simulated trainings."""

from __future__ import annotations

import csv
import os
import signal
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from malletrain.v1 import job_manager_pb2, profiler_pb2, resources_pb2
from tests.profiler.fake_supervisor import StepTimes, make_python
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.long, pytest.mark.system, pytest.mark.timeout(300)]

NODES = 16
STEP_TIMES = StepTimes(batch=32, compute=0.05, bandwidth=0.02, latency=0.002)
DONE = profiler_pb2.PROFILE_STATE_DONE
MEASURING = profiler_pb2.PROFILE_STATE_MEASURING


@pytest.fixture
def system(tmp_path: Path) -> Iterator[Deployment]:
    nodes = ", ".join(f'"n{index:02d}"' for index in range(1, NODES + 1))
    settings = f"""
[scavenger]
source = "static"
nodes = [{nodes}]
debounce_seconds = 0
[job_manager]
trainer_python = "{make_python(tmp_path)}"
standby_memory_mib = 0
[profiler]
retry_seconds = 1
least_top_share = 0.8
[monitor]
publish_seconds = 0.2
warmup_seconds = 0.1
[allocator]
forward_seconds = 20
"""
    with deployed(tmp_path / "state", settings) as deployment:
        wait_until(lambda: len(deployment.json("nodes")) == NODES, 30, "all nodes")
        yield deployment


def submit(system: Deployment, name: str, least: int = 1, most: int = NODES, **more: Any) -> str:
    spec = resources_pb2.JobSpec(
        name=name, command=STEP_TIMES.command, working_directory="/", min_nodes=least, max_nodes=most, **more
    )
    stub = system.stubs.job_manager
    return str(stub.SubmitJobs(job_manager_pb2.SubmitJobsRequest(specs=[spec]), timeout=5).jobs[0].id)


def job(system: Deployment, job_id: str) -> resources_pb2.Job:
    return system.stubs.job_manager.GetJob(job_manager_pb2.GetJobRequest(job_id=job_id), timeout=5).job


def profile(system: Deployment, job_id: str) -> profiler_pb2.Profile:
    return system.stubs.profiler.GetProfile(profiler_pb2.GetProfileRequest(job_id=job_id), timeout=5).profile


def until_done(system: Deployment, job_id: str) -> profiler_pb2.Profile:
    wait_until(lambda: profile(system, job_id).run.state == DONE, 120, f"the profile of {job_id}")
    return profile(system, job_id)


def until_running(system: Deployment, job_id: str) -> None:
    wait_until(lambda: job(system, job_id).state == resources_pb2.JOB_STATE_RUNNING, 60, f"{job_id} running")


def mean_error(found: profiler_pb2.Profile) -> float:
    scales = range(1, NODES + 1)
    rates = np.interp(scales, [0, *(p.nodes for p in found.points)], [0, *(p.rate for p in found.points)])
    return statistics.fmean(abs(rate / STEP_TIMES.rate(n) - 1) for n, rate in zip(scales, rates, strict=True))


def test_an_unknown_job_is_profiled_and_the_others_are_not_stopped(system: Deployment) -> None:
    other = submit(system, "other", least=2, most=12)
    until_running(system, other)
    new = submit(system, "new", profile=resources_pb2.PROFILE_MODE_AUTO)
    found = until_done(system, new)
    assert mean_error(found) <= 0.05
    assert found.run.visited_nodes[0] >= NODES // 2
    assert found.run.growths <= 1
    assert list(found.run.visited_nodes) == sorted(found.run.visited_nodes, reverse=True)
    exhaustive = sum(range(1, NODES + 1)) * 60.0
    assert found.run.node_seconds < 0.1 * exhaustive, "a minute at each scale is what an offline profile takes"
    assert list(found.run.donor_job_ids) == [other]
    events = system.stubs.job_manager.ListJobEvents(
        job_manager_pb2.ListJobEventsRequest(job_id=other), timeout=5
    ).events
    running = [event for event in events if event.to_state == resources_pb2.JOB_STATE_RUNNING]
    assert all(len(event.nodes) >= 2 for event in running)
    assert all(event.to_state != resources_pb2.JOB_STATE_STOPPING for event in events)
    wait_until(lambda: sum(len(job(system, name).commanded_nodes) for name in (other, new)) == NODES, 30, "a full pool")
    _shown(system, new)


def _shown(system: Deployment, job_id: str) -> None:
    """The command shows and exports the curve."""
    plot, table = system.folder / "curve.png", system.folder / "scaling.csv"
    done = system.command("curve", job_id, "--plot", str(plot), "--export", str(table))
    assert done.returncode == 0, done.stderr
    assert "measured" in done.stdout
    assert "node-seconds" in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader(table.open()))
    assert rows[0] == {"model": "new", "nodes": "0", "samples_per_s": "0"}
    assert int(rows[-1]["nodes"]) == NODES
    assert system.command("curve", "j999999").returncode == 1
    assert system.json("curve", job_id)["run"]["state"] == "DONE"


def test_a_killed_profiler_goes_on_where_it_was(system: Deployment) -> None:
    job_id = submit(system, "job", profile=resources_pb2.PROFILE_MODE_ALWAYS)
    wait_until(lambda: _visited(system, job_id) >= 1, 60, "the first scale measured")
    before = list(profile(system, job_id).run.visited_nodes)
    old = system.pids()["profiler"]
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: system.pids().get("profiler", old) != old, 30, "a new Profiler")
    wait_until(lambda: _visited(system, job_id) >= 0, 30, "the new Profiler serving")
    found = until_done(system, job_id)
    assert list(found.run.visited_nodes)[: len(before)] == before
    assert len(set(found.run.visited_nodes)) == len(found.run.visited_nodes)
    assert found.run.growths <= 1
    assert mean_error(found) <= 0.05


def _visited(system: Deployment, job_id: str) -> int:
    """How many scales are measured; -1 while the Profiler does not answer."""
    done = system.command("curve", job_id, "--json")
    if done.returncode:
        return -1
    return len(profile(system, job_id).run.visited_nodes)


def test_a_job_cancelled_during_its_profile_gives_its_nodes_back(system: Deployment) -> None:
    other = submit(system, "other", most=12)
    until_running(system, other)
    started = system.command("profile", submit(system, "job"))
    assert started.returncode == 0, started.stderr
    job_id = started.stdout.partition(":")[0]
    wait_until(lambda: profile(system, job_id).run.state == MEASURING, 60, "measuring")
    assert system.command("cancel", job_id).returncode == 0
    wait_until(lambda: job(system, job_id).state == resources_pb2.JOB_STATE_CANCELLED, 20, "the end")
    wait_until(lambda: len(job(system, other).commanded_nodes) == 12, 20, "the other job having its nodes back")
    assert not profile(system, other).HasField("hold")
