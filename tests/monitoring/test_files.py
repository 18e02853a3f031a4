"""The files of `deploy/monitoring` fit together, the docs, and the metrics that there are."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from malletrain.runtime.settings_file import SERVICES
from tests.docs.shell import ROOT
from tests.monitoring.files import DASHBOARD, FOLDER, dashboard, dashboard_queries, metrics_in
from tests.support.declared_metrics import declared_metrics
from tests.support.metrics import needed

RULES = (FOLDER / "alerts.yml").read_text(encoding="utf-8")
CASES = (FOLDER / "alerts_test.yml").read_text(encoding="utf-8")
ALERTS = re.findall(r"^ +- alert: (\w+)$", RULES, re.MULTILINE)
TARGET = re.compile(r'targets: \["([\w.]+):(\d+)"\]\n +labels: \{ service: (\w+) \}')
OF_THE_PROCESS = {"process_start_time_seconds", "process_cpu_seconds_total", "process_resident_memory_bytes"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_finds_no_fault(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [needed("promtool"), *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_has_a_case_in_which_it_fires_one_in_which_it_does_not_and_a_line_in_the_docs(alert: str) -> None:
    cases = re.split(r"^  - name: ", CASES, flags=re.MULTILINE)[1:]
    mine = [case for case in cases if f'alertname="{alert}",alertstate="firing"' in case]
    assert sum("exp_samples: []" in case for case in mine) == 1
    assert sum("exp_samples: []" not in case for case in mine) == 1
    assert f"`{alert}`" in (ROOT / "docs/operators/metrics.md").read_text(encoding="utf-8")
    rule = RULES.split(f"- alert: {alert}\n")[1].partition("- alert: ")[0]
    assert re.search(r"severity: (critical|warning|info)\b", rule)
    assert "summary:" in rule
    assert "action:" in rule


def test_there_are_alerts_and_no_case_is_for_another() -> None:
    assert len(ALERTS) == len(set(ALERTS)) > 10
    assert set(re.findall(r'alertname="(\w+)"', CASES)) == set(ALERTS)


async def test_alerts_dashboard_and_docs_name_metrics_that_there_are(tmp_path: Path) -> None:
    there = {name for families in (await declared_metrics(tmp_path)).values() for name in families} | OF_THE_PROCESS
    assert metrics_in(RULES) - there == set()
    for title, query in dashboard_queries():
        assert metrics_in(query) - there == set(), title


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    content = dashboard()
    panels = content["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    assert [panel["title"] for panel in panels if panel["type"] == "row"] == [
        "Does the main queue notice us?",
        "What do we harvest?",
        "The services",
    ]
    source = (FOLDER / "grafana/provisioning/datasources/malletrain.yml").read_text(encoding="utf-8")
    used = {target["datasource"]["uid"] for panel in panels for target in panel.get("targets", ())}
    assert used == set(re.findall(r"uid: ([\w-]+)", source))
    provider = (FOLDER / "grafana/provisioning/dashboards/malletrain.yml").read_text(encoding="utf-8")
    assert "/var/lib/grafana/dashboards" in provider
    assert DASHBOARD.name == "malletrain.json"


def test_targets_are_the_five_services_at_the_ports_of_the_docs() -> None:
    ports = {}
    for name, host in (("targets.yml", "127.0.0.1"), ("targets-containers.yml", "")):
        found = TARGET.findall((FOLDER / name).read_text(encoding="utf-8"))
        assert {service for _, _, service in found} == set(SERVICES)
        for where, port, service in found:
            assert where == (host or service)
            assert ports.setdefault(service, port) == port
    for page in (FOLDER / "README.md", ROOT / "docs/operators/metrics.md"):
        text = page.read_text(encoding="utf-8")
        for service, port in ports.items():
            assert f'{service} = "127.0.0.1:{port}"' in text
