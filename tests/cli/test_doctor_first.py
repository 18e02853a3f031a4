"""What `malletrain doctor` says of the state folder, of variables, and of where metrics are served."""

from __future__ import annotations

import errno
import os
import pwd
import socket
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge

from malletrain.cli.operate import doctor
from malletrain.cli.operate.doctor_access import examine_cgroups
from malletrain.common.accounts import account_named, acting_as
from malletrain.common.cgroups import Cgroups
from malletrain.runtime.metrics.service_metrics import MetricsEndpoint
from tests.support.ports import free_port
from tests.support.stranger import let_others_through, needs_another_account


def test_a_folder_that_can_be_made_or_written(tmp_path: Path) -> None:
    assert doctor.examine_state_folder(tmp_path / "new/state").ok
    assert list(tmp_path.iterdir()) == []


@needs_another_account
def test_a_folder_of_somebody_else(tmp_path: Path) -> None:
    let_others_through(tmp_path)
    with acting_as(account_named("nobody")):
        finding = doctor.examine_state_folder(tmp_path / "state")
    assert not finding.ok
    assert "Permission denied" in finding.found
    assert f"install -d -m 700 -o ACCOUNT {tmp_path / 'state'}" in finding.remedy
    assert pwd.getpwnam("nobody").pw_uid != os.geteuid()


def test_a_variable_that_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MALLETRAIN_SHARED", raising=False)  # where data of the tests are
    assert doctor.examine_variables().ok
    monkeypatch.setenv("MALLETRAIN_STATEDIR", "x")
    assert not doctor.examine_variables().ok
    assert "MALLETRAIN_STATEDIR" in doctor.examine_variables().found


def test_whether_jobs_have_cgroups(tmp_path: Path) -> None:
    here = examine_cgroups(lambda name, say: Cgroups(tmp_path / name, say))
    assert (here.ok, here.found) == (True, f"each job has one of its own below {tmp_path}")
    nowhere = examine_cgroups(lambda _, say: Cgroups(None, say, "cgroup v2 is not mounted here"))
    assert nowhere.ok, "they are not needed"
    assert nowhere.found == "jobs have none, processes are looked for in /proc: cgroup v2 is not mounted here"
    assert examine_cgroups().ok


def test_an_address_of_ipv6() -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
            address = f"[::1]:{taken.getsockname()[1]}"
            assert not doctor.examine_metrics_port("monitor", address).ok
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    assert doctor.examine_metrics_port("monitor", address).found == f"{address} is free"


def test_an_address_that_cannot_be_listened_at_is_not_said_to_be_taken() -> None:
    taken = doctor.judge_refused_address("monitor", "h:1", OSError(errno.EADDRINUSE, "Address already in use"))
    unknown = doctor.judge_refused_address(
        "monitor", "h:1", socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    )
    assert (taken.ok, taken.found) == (False, "h:1 is taken by another program")
    assert (unknown.ok, unknown.found) == (False, "h:1 can't be listened at (Name or service not known)")


def test_where_metrics_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    address = f"127.0.0.1:{free_port()}"
    assert "is free" in doctor.examine_metrics_port("monitor", address).found
    registry = CollectorRegistry()
    Gauge("malletrain_build_info", "x", registry=registry)
    endpoint = MetricsEndpoint(address, registry)
    try:
        assert doctor.examine_metrics_port("monitor", address).found == f"{address} serves"
    finally:
        endpoint.close()
    with socket.create_server(("127.0.0.1", 0)) as other:
        finding = doctor.examine_metrics_port("monitor", f"127.0.0.1:{other.getsockname()[1]}")
    assert not finding.ok
    assert "metrics.monitor" in finding.remedy
