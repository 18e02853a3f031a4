"""Each service is stopped by SIGSTOP while a training runs: `up` notices, and the training does not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.runtime.settings_file import SERVICES
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed
from tests.upgrade.training import PATIENCE, submit

pytestmark = [pytest.mark.long, pytest.mark.horovod, pytest.mark.system, pytest.mark.timeout(600)]

NODES = ("n1", "n2")
SETTINGS = """
[scavenger]
source = "static"
nodes = ["n1", "n2"]
debounce_seconds = 0
[job_manager]
rescale_deadline_seconds = 180
"""
BACK_SECONDS = 30.0


@pytest.fixture
def system(tmp_path: Path) -> Iterator[Deployment]:
    """Services with two nodes."""
    with deployed(tmp_path / "state", SETTINGS) as running:
        yield running


def test_a_stopped_service_is_replaced_and_the_training_goes_on(system: Deployment) -> None:
    pytest.importorskip("horovod.torch", reason="needs Horovod: run deploy/install-horovod.sh")
    training = submit(system, "horovod", most=2)
    training.wait_trains_on(NODES)
    before, took = training.processes(), {}
    for service in SERVICES:
        pids, begin = system.pids(), time.monotonic()
        os.kill(pids[service], signal.SIGSTOP)
        wait_until(
            lambda service=service, pids=pids: system.pids().get(service) not in (None, pids[service]),
            2 * BACK_SECONDS,
            f"a new {service}",
        )
        wait_until(lambda service=service: system.command("health", service).returncode == 0, BACK_SECONDS)
        took[service] = time.monotonic() - begin
        assert {name: pid for name, pid in system.pids().items() if name != service} == {
            name: pid for name, pid in pids.items() if name != service
        }
        training.wait_trains_on(NODES)
        assert training.processes() == before, service
    training.end()
    log = (system.folder / "up.log").read_text()
    assert all(f"{service} has hung" in log for service in SERVICES), log
    assert max(took.values()) < BACK_SECONDS, took


def test_services_and_up_that_are_stopped_together_go_on(system: Deployment) -> None:
    pids = system.pids()
    everybody = [system.process.pid, *pids.values()]
    for pid in everybody:
        os.kill(pid, signal.SIGSTOP)
    begin = time.monotonic()
    wait_until(lambda: time.monotonic() > begin + 20, 30, "twenty seconds of suspension")
    for pid in everybody:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: system.command("nodes").returncode == 0, PATIENCE, "the nodes listed again")
    again = time.monotonic()
    wait_until(lambda: time.monotonic() > again + 6, 30, "some more health checks")
    assert system.pids() == pids
    assert "has hung" not in (system.folder / "up.log").read_text()


def test_submit_to_a_service_that_does_not_answer_ends_and_names_it(system: Deployment) -> None:
    os.kill(system.pids()["job_manager"], signal.SIGSTOP)
    begin = time.monotonic()
    refused = system.command("submit", "--max", "1", "--", "true")
    assert time.monotonic() - begin < BACK_SECONDS
    assert refused.returncode == 1
    assert "JobManager" in refused.stderr
    assert "Traceback" not in refused.stderr
