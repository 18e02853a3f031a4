"""Services of this version take over what those of the last release run, without a training that stops."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from malletrain.runtime.database.schema_history import SchemaHistory
from malletrain.runtime.settings_file import SERVICES
from tests.support.waiting import wait_until
from tests.system.deployment import start, write_settings
from tests.upgrade.training import (
    PATIENCE,
    Training,
    adapt_settings,
    end_services,
    kill_services,
    start_services,
    submit,
)
from tests.upgrade.versions import PRESENT, Prefix, new_prefix, version_of

pytestmark = [pytest.mark.upgrade, pytest.mark.timeout(400)]

BACKENDS = [pytest.param("torchrun"), pytest.param("horovod", marks=pytest.mark.horovod)]
NODES = ["n1", "n2"]
SETTINGS = """
[scavenger]
source = "static"
nodes = ["n1", "n2"]
debounce_seconds = 0
[job_manager]
stop_jobs_on_exit = false
drain_grace_seconds = 10
"""


def begin(folder: Path, prefix: Prefix, backend: str) -> Training:
    """Services of a version, and a training on two nodes."""
    write_settings(folder, SETTINGS)
    training = submit(start_services(folder, prefix), backend)
    training.wait_trains_on(NODES)
    return training


def rescale(training: Training) -> None:
    """Take a node from a training, and give it back."""
    training.drain("n2")
    training.wait_trains_on(NODES[:1])
    training.resume("n2")
    training.wait_trains_on(NODES)


def take_over(training: Training, prefix: Prefix) -> None:
    """Start the services of another version on the state folder: they find the job with the same processes."""
    before = training.processes()
    training.system = start_services(training.system.folder, prefix)
    training.wait_trains_on(NODES)
    assert training.processes() == before
    assert len(before.workers) == len(NODES)


def test_the_two_versions_can_be_told_apart(earlier: Path, present: Path) -> None:
    assert version_of(present) == PRESENT != version_of(earlier)


@pytest.mark.parametrize("backend", BACKENDS)
def test_new_services_beside_old_supervisors(
    folder: Path, earlier_prefix: Prefix, present_prefix: Prefix, backend: str
) -> None:
    training = begin(folder, earlier_prefix, backend)
    kill_services(training.system)
    take_over(training, present_prefix)
    supervisor = training.processes().supervisor
    rescale(training)
    assert training.processes().supervisor == supervisor
    assert training.job().supervisor_version != PRESENT
    training.end(repeats=backend == "horovod", by_steps=True)
    later = submit(training.system, backend)
    wait_until(lambda: later.job().supervisor_version == PRESENT, PATIENCE, "a supervisor of this version")
    end_services(training.system)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_upgrade_in_place_under_running_supervisors(
    folder: Path, tmp_path: Path, earlier: Path, present: Path, backend: str
) -> None:
    """What supervisors and trainers start from now on is of this version: workers, reapers, sidecars."""
    prefix = new_prefix(tmp_path / "venv", earlier)
    training = begin(folder / "state", prefix, backend)
    prefix.install(present)
    # Before the services are exchanged, too.
    rescale(training)
    before = training.processes()
    end_services(training.system)
    training.system = start_services(training.system.folder, prefix)
    training.wait_trains_on(NODES)
    assert training.processes() == before
    rescale(training)
    # New workers start theirs with their first report.
    for sidecar in wait_until(lambda: sidecars(training), PATIENCE, "a sidecar"):
        os.kill(sidecar, signal.SIGKILL)
    training.wait_trains_on(NODES)
    assert training.processes().supervisor == before.supervisor
    assert training.job().supervisor_version != PRESENT
    training.end(repeats=backend == "horovod", by_steps=True)
    end_services(training.system)


def test_back_to_the_last_release(folder: Path, earlier_prefix: Prefix, present_prefix: Prefix) -> None:
    training = begin(folder, present_prefix, "torchrun")
    kill_services(training.system)
    if unknown := unknown_tables(earlier_prefix):
        adapt_settings(folder, earlier_prefix)
        system = start(folder, python=earlier_prefix.python)
        assert system.process.wait(PATIENCE) != 0
        said = (folder / "up.log").read_text()
        assert any(f"the tables of {name}" in said for name in unknown), said
        assert "use the version that wrote them or a later one" in said
        training.system = start_services(folder, present_prefix)
    else:
        take_over(training, earlier_prefix)
        rescale(training)
    training.end()
    end_services(training.system)


def sidecars(training: Training) -> list[int]:
    """Process ids of the sidecars of a training."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MALLETRAIN_JOB_DIR") == str(training.folder):
                found += [process.pid] * ("malletrain.client.sidecar" in process.cmdline())
        except psutil.Error:
            continue
    return found


def unknown_tables(prefix: Prefix) -> list[str]:
    """Services whose tables are of a revision that the version in an environment does not know."""
    (package,) = prefix.folder.glob("lib/python3.*/site-packages/malletrain")
    return [
        service
        for service in SERVICES
        if (package / service / "migrations").is_dir()
        and SchemaHistory(service).newest not in SchemaHistory(service, package / service / "migrations").revisions
    ]
