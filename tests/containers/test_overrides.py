"""The overrides for clusters, as compose understands them: whoever is called by name can be found by that name."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from typing import Any

import pytest

from malletrain.runtime.settings_file import SERVICES
from tests.containers.composition import ROOT

pytestmark = pytest.mark.containers

LOOPBACK = "127.0.0.1"
SITE = {"MALLETRAIN_USER": "1:1", "MALLETRAIN_STATE_DIR": "/shared/state", "SHARED_FILE_SYSTEM": "/shared"}
DATABASE = ("--env-file", "deploy/docker/postgres.env")
EVERYTHING = "cli,dashboard,postgres,monitoring,grafana"

each_cluster = pytest.mark.parametrize("cluster", ["slurm", "pbs"])


@pytest.fixture(autouse=True)
def _compose() -> None:
    if shutil.which("docker") is None or not runs("docker", "compose", "version"):
        pytest.skip("needs docker with compose")


def runs(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def understood(override: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """What `docker compose config` says of docker-compose.yml with an override."""
    files = ("--file", "docker-compose.yml", "--file", f"deploy/docker/{override}.yml")
    ours = ("MALLETRAIN_", "COMPOSE_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return subprocess.run(
        ["docker", "compose", *options, *files, "config", "--format", "json"],
        cwd=ROOT,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def services(override: str, **variables: str) -> dict[str, Any]:
    done = understood(override, *DATABASE, COMPOSE_PROFILES=EVERYTHING, **variables)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["services"]
    return found


def called_by_name(service: dict[str, Any], names: set[str]) -> set[str]:
    """The containers that a service is told to call by name."""
    words = [*service.get("environment", {}).values(), *(service["command"] or ())]
    return {name for name in names for word in words if re.search(rf"(^|[/@]){name}([:/]|$)", word or "")}


@each_cluster
def test_on_a_clusters_head_node_containers_find_each_other(cluster: str) -> None:
    found = services(cluster, **SITE)
    on_host = {name for name, service in found.items() if service.get("network_mode") == "host"}
    assert on_host == found.keys() - {"postgres"}
    for name in on_host:
        known = {entry.partition("=")[0] for entry in found[name].get("extra_hosts", ())}
        assert called_by_name(found[name], found.keys() - {name}) <= known, name
    # PostgreSQL stays on the bridge: who calls it by name gets loopback, where it is published.
    assert called_by_name(found["job_manager"], found.keys() - {"job_manager"}) == {"postgres"}
    assert found["job_manager"]["extra_hosts"] == [f"postgres={LOOPBACK}"]
    (port,) = found["postgres"]["ports"]
    assert (port["host_ip"], port["published"], port["target"]) == (LOOPBACK, "5432", 5432)


@each_cluster
def test_nothing_listens_beyond_loopback(cluster: str) -> None:
    found = services(cluster, **SITE)
    for service in SERVICES:
        own = found[service]["environment"]
        assert own[f"MALLETRAIN_ADDRESSES__{service.upper()}"].startswith(f"{LOOPBACK}:"), service
        assert own[f"MALLETRAIN_METRICS__{service.upper()}"].startswith(f"{LOOPBACK}:"), service
    assert found["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == LOOPBACK
    assert f"--web.listen-address={LOOPBACK}:9090" in found["prometheus"]["command"]
    assert f"--address={LOOPBACK}:7706" in found["dashboard"]["command"]


@each_cluster
@pytest.mark.parametrize(
    ("left_out", "told"),
    [
        ("MALLETRAIN_USER", "UID:GID of the account that submits placeholders"),
        ("MALLETRAIN_STATE_DIR", "state folder, of this account"),
        ("SHARED_FILE_SYSTEM", "file system that the nodes share"),
    ],
)
def test_a_variable_that_is_missing_is_named(cluster: str, left_out: str, told: str) -> None:
    done = understood(cluster, **{name: value for name, value in SITE.items() if name != left_out})
    assert done.returncode != 0
    assert left_out in done.stderr
    assert told in done.stderr


def test_published_services_are_on_loopback_only() -> None:
    found = services("publish")
    for service in SERVICES:
        assert [port["host_ip"] for port in found[service]["ports"]] == [LOOPBACK], service
