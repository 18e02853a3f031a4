"""The whole demo, disturbed: each service is killed once while it runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from malletrain.caller.credentials import owner_credential
from malletrain.cli.demo.job_processes import find_job_processes
from malletrain.cli.shared.settings import load
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.runtime.settings_file import SERVICES
from malletrain.v1 import monitor_pb2
from tests.support.waiting import wait_until
from tests.system.deployment import service_pids

pytestmark = [pytest.mark.demo, pytest.mark.horovod]

FIELDS = {
    "events",
    "rescales",
    "preemptions",
    "samples",
    "jobs_completed",
    "jobs_failed",
    "node_seconds_offered",
    "node_seconds_used",
    "node_seconds_lost_to",
    "reclaim_seconds_max",
    "timeline",
}

MIN_SHARE = 0.6
"""Of the offered node-seconds. Without kills it is 0.85 and more, see `benchmarks/demo_share.py`."""


def test_the_demo_finishes_while_every_service_is_killed_once(tmp_path: Path) -> None:
    pytest.importorskip("horovod.torch", reason="needs Horovod: run deploy/install-horovod.sh")
    timeline = tmp_path / "timeline.png"
    with (tmp_path / "out.json").open("wb") as out, (tmp_path / "err.log").open("wb") as errors:
        demo = subprocess.Popen(
            [
                *(sys.executable, "-m", "malletrain.cli.main", "demo", "--json", "--seed", "3"),
                *("--folder", str(tmp_path / "demo"), "--timeline", str(timeline)),
            ],
            stdout=out,
            stderr=errors,
        )
    killed = _kill_each_service(demo, tmp_path / "demo")
    code = demo.wait(480)
    messages = (tmp_path / "err.log").read_text()
    assert killed == list(SERVICES)
    assert code == 0, messages
    summary = json.loads((tmp_path / "out.json").read_text())
    assert summary.keys() >= FIELDS
    assert (summary["jobs_completed"], summary["jobs_failed"]) == (3, 0)
    assert summary["events"] > 5
    assert summary["rescales"] > 0
    assert summary["samples"] > 0
    _check_node_seconds(summary)
    assert all(job["accuracy"] > 0.9 for job in summary["jobs"]), summary["jobs"]
    assert timeline.stat().st_size > 10_000
    assert find_job_processes(tmp_path / "demo") == []


def _check_node_seconds(summary: dict[str, Any]) -> None:
    """Most of what was offered is used, though services are killed; what is not has its causes, which add up."""
    offered, used, lost_to = (summary[f"node_seconds_{name}"] for name in ("offered", "used", "lost_to"))
    assert MIN_SHARE * offered <= used <= offered, summary
    assert used + sum(lost_to.values()) == pytest.approx(offered, abs=0.1 * (len(lost_to) + 1))


def _kill_each_service(demo: subprocess.Popen[bytes], folder: Path) -> list[str]:
    """Kill each service once, with training going on in between."""
    up = wait_until(lambda: _up(demo.pid), 30, "malletrain up")
    for service in SERVICES:
        _kill(service, up, folder)
    return list(SERVICES)


def _kill(service: str, up: int, folder: Path) -> None:
    workers = wait_until(lambda: _workers(folder), 120, "workers")
    before = wait_until(lambda: service_pids(up).get(service), 30, service)
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: service_pids(up).get(service, before) != before, 30, f"a new {service}")
    assert set(workers) & set(_workers(folder)), f"no worker survived the kill of {service}"
    samples = wait_until(lambda: _samples(folder), 30, "progress at Monitor")
    wait_until(lambda: _samples(folder) > samples + 1000, 60, f"training after the kill of {service}")


def _samples(folder: Path) -> int:
    """Samples of all jobs by Monitor; 0 while it does not answer."""
    settings = load(folder / "malletrain.toml")
    stubs = ServiceStubs(settings, owner_credential(settings))
    try:
        response = stubs.monitor.GetProgress(monitor_pb2.GetProgressRequest(), timeout=2)
    except grpc.RpcError:
        return 0
    finally:
        stubs.close()
    return sum(entry.samples for entry in response.progress)


def _workers(folder: Path) -> list[int]:
    return [process.pid for process in find_job_processes(folder) if process.node]


def _up(pid: int) -> int | None:
    return next((child.pid for child in psutil.Process(pid).children() if "up" in child.cmdline()), None)
