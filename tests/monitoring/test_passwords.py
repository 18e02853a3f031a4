"""Grafana has no password that everybody knows, and neither it nor Prometheus is published off loopback."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

yaml: Any = pytest.importorskip("yaml")  # a dependency of others here
ROOT = Path(__file__).parents[2]
LISTENS = {"prometheus": "--web.listen-address=127.0.0.1:${PROMETHEUS_PORT:-9090}", "grafana": "127.0.0.1"}
SCRIPT = ROOT / "deploy/monitoring/make-grafana-password.sh"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    return found


def test_grafana_takes_its_password_from_a_file_and_lets_nobody_in_without(compose: dict[str, Any]) -> None:
    grafana = compose["services"]["grafana"]
    environment = grafana["environment"]
    assert environment["GF_SECURITY_ADMIN_PASSWORD__FILE"] == "/run/secrets/grafana_password"
    assert "GF_SECURITY_ADMIN_PASSWORD" not in environment
    assert grafana["secrets"] == ["grafana_password"]
    # A file that must be there: /dev/null would be the empty password.
    assert compose["secrets"]["grafana_password"]["file"] == "${GRAFANA_PASSWORD_FILE:-./secrets/grafana_password}"
    assert environment["GF_AUTH_ANONYMOUS_ENABLED"] == "false"
    assert environment["GF_USERS_ALLOW_SIGN_UP"] == "false"


@pytest.mark.parametrize("name", ["docker-compose.yml", "deploy/docker/slurm.yml", "deploy/docker/pbs.yml"])
def test_what_is_published_is_on_loopback(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8").replace("!reset []", "[]").replace("!reset null", "null")
    services: dict[str, Any] = yaml.safe_load(text)["services"]
    for service, told in services.items():
        for port in told.get("ports", ()):
            assert port.startswith(("127.0.0.1:", "${DASHBOARD_ADDRESS:-127.0.0.1:")), service
    for service in ("prometheus", "grafana"):
        if services[service].get("network_mode") == "host":
            words = [*services[service].get("command", ()), *services[service].get("environment", {}).values()]
            assert any(
                word in ("127.0.0.1", "--web.listen-address=127.0.0.1:${PROMETHEUS_PORT:-9090}") for word in words
            )


def make(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, folder], capture_output=True, text=True, timeout=30, check=False)


def test_a_password_is_made_once_and_closed_to_others(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    assert make(folder).returncode == 0
    file = folder / "grafana_password"
    password = file.read_text()
    assert len(password.strip()) == 24
    assert password not in make(folder).stdout
    assert file.read_text() == password, "one that is there stays"
    assert make(tmp_path / "other").returncode == 0
    assert (tmp_path / "other/grafana_password").read_text() != password
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [path.name for path in folder.iterdir()] == [file.name]


def test_a_folder_that_others_can_enter_gets_no_password(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    done = make(folder)
    assert done.returncode == 1
    assert "closed to others" in done.stderr
    assert list(folder.iterdir()) == []
