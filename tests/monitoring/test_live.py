"""A real Prometheus scrapes the five services with a job: pages, labels, rules and every query of the dashboard."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from malletrain.cli.demo.setup import free_ports
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.runtime.settings_file import SERVICES
from malletrain.v1 import job_manager_pb2, scavenger_pb2
from tests.docs.test_metrics import PAGE
from tests.monitoring.files import FOLDER
from tests.monitoring.prometheus import Prometheus, dashboard_problems
from tests.scavenger.recorded_commands import RecordedCommands
from tests.support.metrics import fetch, needed
from tests.support.ports import free_port
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.long, pytest.mark.system, pytest.mark.timeout(180)]

SECRET = "s3cret-of-ada"
WITHOUT_DATA = {
    "malletrain_allocator_utilization_efficiency": "what a minute was used for is known a minute after its end",
    "malletrain_monitor_rescale_stall_seconds": "a program that starts its workers itself reports one, at any scale",
}
"""Metrics of which nothing is measured here, and why. tests/containers trains."""
MAY_BE_NAN = {
    "malletrain_rpc_seconds": "a service that others follow by streams gets no unary call for minutes",
    "agent_left": "no node is held by a placeholder",
}
"""Parts of results that may be NaN, a quantile of nothing, and why. Another part of the same result is a figure."""


@dataclass(frozen=True)
class Monitored:
    """A system with a job, and the Prometheus that scrapes it."""

    system: Deployment
    ports: dict[str, int]
    prometheus: Prometheus


@contextmanager
def prometheus(folder: Path, ports: dict[str, int]) -> Iterator[Prometheus]:
    """Prometheus with our files, but for where the services are and how often it asks them."""
    program, port = needed("prometheus"), free_port()
    folder.mkdir()
    config = (FOLDER / "prometheus.yml").read_text(encoding="utf-8")
    (folder / "prometheus.yml").write_text(re.sub(r"(interval|timeout): \d+s", r"\1: 1s", config))
    (folder / "alerts.yml").write_text((FOLDER / "alerts.yml").read_text(encoding="utf-8"))
    targets = [{"targets": [f"127.0.0.1:{ports[name]}"], "labels": {"service": name}} for name in SERVICES]
    (folder / "targets.yml").write_text(json.dumps(targets))  # JSON is YAML
    where = [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "--config.file=prometheus.yml", *where], cwd=folder, stdout=log, stderr=log
        )
    try:
        found = Prometheus(port)
        wait_until(found.is_ready, 20, "Prometheus ready")
        yield found
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    needed("prometheus")
    needed("promtool")
    folder = tmp_path_factory.mktemp("monitored")
    ports = dict(zip(SERVICES, free_ports(), strict=True))
    addresses = "\n".join(f'{name} = "127.0.0.1:{port}"' for name, port in ports.items())
    settings = f"""
[metrics]
{addresses}
[scavenger]
source = "slurm"
debounce_seconds = 0
[scavenger.slurm]
partitions = ["main"]
interval_seconds = 0.5
{slurm_of_three(folder / "slurm")}
[job_manager]
trainer_python = "{sys.executable}"
"""
    with deployed(folder / "up", settings) as system, prometheus(folder / "prometheus", ports) as asked:
        found = Monitored(system, ports, asked)
        harvest(found)
        yield found


def slurm_of_three(folder: Path) -> str:
    """Settings of a Slurm that says the same at every query: three idle nodes, and nobody else's jobs."""
    commands = RecordedCommands(folder)
    folder.mkdir()
    answers = {"sinfo": "idle|n1\nidle|n2\nidle|n3\n", "squeue": "", "scontrol": ""}
    return "\n".join(f'{name} = "{commands.add(name, answer)}"' for name, answer in answers.items())


def harvest(monitored: Monitored) -> None:
    """Have a job train on all nodes, and lose one to the main queue; have some calls fail."""
    system = monitored.system
    stubs = system.stubs
    wait_until(lambda: monitored.prometheus.value("malletrain_scavenger_idle_nodes") == 3, 20, "three idle nodes")
    call_in_vain(stubs)
    program = [sys.executable, str(Path(__file__).with_name("reporter.py")), SECRET]
    scale = ("--min", "1", "--max", "3", "--profile", "never", "--env", f"PASSWORD={SECRET}")
    submitted = system.command("submit", "--backend", "command", *scale, "--", *program)
    assert submitted.returncode == 0, submitted.stderr
    wait_until(lambda: monitored.prometheus.value("malletrain_monitor_records_total") > 20, 30, "records")
    (job,) = system.json("jobs")
    assert len(job["confirmedNodes"]) == 3
    request = scavenger_pb2.ReclaimNodesRequest(nodes=job["confirmedNodes"][:1], hold_seconds=600)
    stubs.scavenger.ReclaimNodes(request, timeout=10)
    call_in_vain(stubs)
    stubs.close()
    for text in (
        "malletrain_job_manager_node_release_seconds_count",
        'malletrain_job_manager_scale_change_seconds_count{kind="rescale"}',
        'malletrain_job_manager_rescales_total{cause="preemption"}',
        "sum(rate(malletrain_monitor_job_samples_total[5s]))",
        'malletrain_job_manager_jobs{state="running"}',
        'increase(malletrain_rpc_handled_total{rpc_method="ReclaimNodes"}[1m]) + 1',
    ):
        wait_until(lambda text=text: monitored.prometheus.value(text) > 0, 30, text)


def call_in_vain(stubs: ServiceStubs) -> None:
    """Ask for a job that there is not."""
    with pytest.raises(grpc.RpcError):
        stubs.job_manager.GetJob(job_manager_pb2.GetJobRequest(job_id="j999999"), timeout=10)


def test_prometheus_gets_all_five_and_takes_our_rules(monitored: Monitored) -> None:
    targets = monitored.prometheus.ask("targets")["activeTargets"]
    assert {target["labels"]["service"]: target["health"] for target in targets} == dict.fromkeys(SERVICES, "up")
    wait_until(lambda: all(rule["health"] == "ok" for rule in rules(monitored)), 20, "all rules evaluated")
    firing = {rule["name"] for rule in rules(monitored) if rule["state"] == "firing"}
    assert firing == set()


def rules(monitored: Monitored) -> list[dict[str, Any]]:
    return [rule for group in monitored.prometheus.ask("rules")["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("service", SERVICES)
def test_promtool_finds_no_fault_in_a_page_and_nobody_a_secret(monitored: Monitored, service: str) -> None:
    page = fetch(monitored.ports[service])
    checked = subprocess.run(
        [needed("promtool"), "check", "metrics"], input=page, capture_output=True, text=True, timeout=30, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    assert SECRET not in page
    assert "reporter.py" not in page
    assert str(monitored.system.folder) not in page


def test_the_docs_name_the_labels(monitored: Monitored) -> None:
    rows = re.findall(r"\| `(malletrain_\w+)` \| (\w+) \|([^|]*)\|", PAGE.read_text(encoding="utf-8"))
    documented = {name: frozenset(re.findall(r"`(\w+)`", labels)) for name, _, labels in rows}
    for service in SERVICES:
        for family in text_string_to_metric_families(fetch(monitored.ports[service])):
            for entry in family.samples:
                if entry.name.startswith("malletrain_"):
                    name = entry.name if family.type != "histogram" else family.name
                    assert frozenset(entry.labels) - {"le"} == documented[name], entry


def test_every_query_of_the_dashboard_returns_data(monitored: Monitored) -> None:
    problems = dashboard_problems(monitored.prometheus, WITHOUT_DATA, MAY_BE_NAN, "1m")
    assert problems == [], problems


def test_the_time_of_all_nodes_is_accounted_for(monitored: Monitored) -> None:
    """From the reclaim on, 2 nodes of 3 are offered, and the job trains on both."""
    for uses in ("", '{use="training"}'):
        text = f"sum(rate(malletrain_job_manager_node_seconds_total{uses}[5s]))"
        wait_until(lambda text=text: abs(monitored.prometheus.value(text) - 2) < 0.2, 30, text)
