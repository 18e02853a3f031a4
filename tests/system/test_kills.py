"""Each service is killed while a real training runs, with both kinds of database; the training does not notice."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.runtime.settings_file import SERVICES
from tests.support.postgresql import PostgresServer, postgresql_server
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed
from tests.training.accounts import lines_in
from tests.upgrade.training import PATIENCE, submit

pytestmark = [pytest.mark.training, pytest.mark.horovod, pytest.mark.system, pytest.mark.timeout(600)]

NODES = ("n1", "n2")
SETTINGS = """
[scavenger]
source = "static"
nodes = ["n1", "n2"]
debounce_seconds = 0
[job_manager]
rescale_deadline_seconds = 180
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer | None]:
    """The server of the databases; None: they are files."""
    pytest.importorskip("horovod.torch", reason="needs Horovod: run deploy/install-horovod.sh")
    if request.param == "sqlite":
        yield None
        return
    with postgresql_server() as running:
        yield running


def kill(system: Deployment, service: str) -> None:
    """Kill a service, and wait until there is another one."""
    before = system.pids()[service]
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: system.pids().get(service, before) != before, PATIENCE, f"a new {service}")


def test_a_training_goes_on_when_each_service_is_killed(tmp_path: Path, server: PostgresServer | None) -> None:
    shared = (
        f'database_url = "{server.new_database()}"\ndatabase_password_file = "{server.password_file}"' if server else ""
    )
    with deployed(tmp_path / "state", SETTINGS, shared=shared) as system:
        training = submit(system, "horovod", most=2)
        training.wait_trains_on(NODES)
        before = training.processes()
        for service in SERVICES:
            kill(system, service)
            training.wait_trains_on(NODES)
            assert training.processes() == before, service
        if server:
            server.kill()
            noted = len(lines_in(training.folder))
            wait_until(lambda: len(lines_in(training.folder)) > noted + 100, PATIENCE, "batches without a database")
            server.start()
            training.wait_trains_on(NODES)
            assert training.processes() == before
        training.end()
