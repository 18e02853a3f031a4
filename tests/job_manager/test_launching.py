"""When a supervisor is started, and when not."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from malletrain.common.processes import find_processes
from malletrain.fleet.spec import FleetSpec
from malletrain.job_manager.launching.accounts import CommonAccount
from malletrain.job_manager.launching.launch_settings import LaunchSettings, MonitorAddress
from malletrain.job_manager.launching.launcher import SupervisorLauncher
from malletrain.job_manager.launching.processes import of_supervisor
from malletrain.job_manager.launching.starting import LaunchOrder
from malletrain.job_manager.launching.supervisor_client import NodeHost
from malletrain.job_manager.machine.jobs import JobSpec
from malletrain.tls.names import node_name
from tests.job_manager.stand_in import make_python
from tests.support.job_secrets import job_secrets
from tests.support.ports import free_port
from tests.support.waiting import wait_until_async

SPEC = JobSpec(name="job", command=("sleep", "60"), working_directory="/", min_nodes=1, max_nodes=4)
ORDER = LaunchOrder("j000001", 1, "ada", SPEC, 1, ("n1",))


def _launcher(folder: Path) -> SupervisorLauncher:
    python = str(make_python(folder))
    settings = LaunchSettings(folder, folder / "jobs", python, MonitorAddress("127.0.0.1:1"))
    return SupervisorLauncher(settings, os.environ, job_secrets(folder / "own.pem"), CommonAccount())


@pytest.mark.processes
async def test_no_supervisor_starts_before_it_is_known_where_its_nodes_are(tmp_path: Path) -> None:
    launcher = _launcher(tmp_path)
    asked: list[LaunchOrder] = []

    def order() -> LaunchOrder:
        asked.append(ORDER)
        return ORDER

    starting = asyncio.create_task(launcher.start(ORDER.job_id, 1, order))
    await wait_until_async(lambda: len(asked) > 2)
    assert launcher.folder(ORDER.job_id).launched() is None
    name = node_name("n1")
    launcher.update_hosts({"n1": NodeHost(f"127.0.0.1:{free_port()}", gpus=4, agent_name=name)})
    await starting
    try:
        launch = launcher.folder(ORDER.job_id).launched()
        assert launch is not None
        (host,) = launch["hosts"]
        assert host.pop("agent").startswith("127.0.0.1:")
        assert host == {"name": "n1", "slots": 4, "agent_name": name}
        assert launch["certificate_file"] == str(tmp_path / "own.pem")
        launcher.update_hosts({"n2": NodeHost(gpus=4), "n3": NodeHost(gpus=2)})
        suits = {node: launcher.suits(ORDER.job_id, 1, SPEC, (node,)) for node in ("n2", "n3")}
        assert suits == {"n2": True, "n3": False}, "it starts four workers a node"
        assert not launcher.suits(ORDER.job_id, 2, SPEC, ("n2",))
        assert len(launcher.launches) == 1
    finally:
        await launcher.stop(ORDER.job_id, 1, 0.0)
        await launcher.collect(ORDER.job_id, 1)
    assert len(launcher.launches) == 0, "nothing is kept of a job without a supervisor"


@pytest.mark.processes
async def test_members_of_a_fleet_are_told_where_their_feeds_find_each_other(tmp_path: Path) -> None:
    launcher = _launcher(tmp_path)
    launcher.update_hosts({"n1": NodeHost()})
    # Its first member has not been started yet.
    member = replace(ORDER, job_id="j000004", sharing_fleet="f000003")
    await launcher.start(member.job_id, 1, lambda: member)
    try:
        launch = launcher.folder(member.job_id).launched()
        assert launch is not None
        feeds = tmp_path / "jobs" / "j000003" / "feeds"
        assert launch["environment"].items() >= {
            ("MALLETRAIN_FEED_PEERS", str(feeds)),
            ("MALLETRAIN_FLEET", "f000003"),
            ("MALLETRAIN_NODE_ADDRESS", "127.0.0.1"),
        }
        assert stat.S_IMODE(feeds.stat().st_mode) == 0o700
        certificate = tmp_path / "jobs" / member.job_id / "feed.pem"
        assert certificate.read_text() == "for f000003"
        assert stat.S_IMODE(certificate.stat().st_mode) == 0o600
        assert not launcher.folder("j000003").is_launched
        (feeds / "one.json").touch()
        launcher.folder("j000003").remove_own_files()
        assert not feeds.parent.exists()
    finally:
        await launcher.stop(member.job_id, 1, 0.0)
        await launcher.collect(member.job_id, 1)


@pytest.mark.processes
async def test_other_jobs_are_told_of_no_other_feeds(tmp_path: Path) -> None:
    launcher = _launcher(tmp_path)
    launcher.update_hosts({"n1": NodeHost()})
    await launcher.start(ORDER.job_id, 1, lambda: ORDER)
    try:
        launch = launcher.folder(ORDER.job_id).launched()
        assert launch is not None
        assert not {"MALLETRAIN_FEED_PEERS", "MALLETRAIN_FLEET", "MALLETRAIN_NODE_ADDRESS"} & set(launch["environment"])
        assert not (tmp_path / "jobs" / ORDER.job_id / "feed.pem").exists()
    finally:
        await launcher.stop(ORDER.job_id, 1, 0.0)
        await launcher.collect(ORDER.job_id, 1)


FLEET = FleetSpec("fleet", 2)
FEED = {"MALLETRAIN_FEED": "data:training_set"}


@pytest.mark.parametrize(
    ("fleet", "environment", "shares"),
    [
        (FLEET, FEED, True),
        (FLEET, FEED | {"MALLETRAIN_FEED_ACROSS_NODES": "1"}, True),
        (FLEET, FEED | {"MALLETRAIN_FEED_ACROSS_NODES": "0"}, False),
        (FLEET, {"MALLETRAIN_FEED": ""}, False),
        (FLEET, {}, False),
        (replace(FLEET, max_nodes=1), FEED, False),
        (None, FEED, False),
    ],
)
def test_members_of_fleets_with_a_feed_share_across_nodes(
    fleet: FleetSpec | None, environment: dict[str, str], shares: bool
) -> None:
    assert replace(SPEC, fleet=fleet, environment=environment).shares_across_nodes == shares


async def test_a_job_that_shall_not_start_any_more_does_not_wait_for_that(tmp_path: Path) -> None:
    launcher = _launcher(tmp_path)
    await launcher.start(ORDER.job_id, 1, lambda: None)
    assert launcher.folder(ORDER.job_id).launched() is None


@pytest.mark.processes
async def test_a_supervisor_that_knows_of_nodes_taken_while_it_was_forked_is_replaced(tmp_path: Path) -> None:
    launcher = _launcher(tmp_path)
    launcher.update_hosts({"n1": NodeHost(), "n2": NodeHost()})
    later = replace(ORDER, sequence=2, nodes=("n2",))
    asked = iter([ORDER, ORDER])
    await launcher.start(ORDER.job_id, 1, lambda: next(asked, later))
    try:
        launch = launcher.folder(ORDER.job_id).launched()
        assert launch is not None
        assert (launch["sequence"], [host["name"] for host in launch["hosts"]]) == (2, ["n2"])
        running = launcher.folder(ORDER.job_id).supervisor()
        assert running is not None
        left = find_processes(of_supervisor(tmp_path / "jobs", ORDER.job_id, 1))
        assert [process.id.pid for process in left] == [running.pid]
    finally:
        await launcher.stop(ORDER.job_id, 1, 0.0)
        await launcher.collect(ORDER.job_id, 1)


@pytest.mark.parametrize(("keep_seconds", "pending"), [(0.0, False), (300.0, True), (300.0, False)])
@pytest.mark.processes
async def test_a_supervisor_that_may_have_stayed_is_killed_only_while_its_stop_is_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_seconds: float, pending: bool
) -> None:
    for limit in ("_LINGER_SECONDS", "_ANSWER_SECONDS"):
        monkeypatch.setattr(f"malletrain.job_manager.launching.launcher.{limit}", 0.2)
    launcher = _launcher(tmp_path)
    launcher.update_hosts({"n1": NodeHost()})
    await launcher.start(ORDER.job_id, 1, lambda: ORDER)
    supervisor = launcher.folder(ORDER.job_id).supervisor()
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGSTOP)  # it answers nothing
    try:
        await launcher.stop(ORDER.job_id, 1, 0.0, keep_seconds, 1, lambda: pending)
        if keep_seconds and not pending:
            assert supervisor.alive()
        else:
            await wait_until_async(lambda: not supervisor.alive())
    finally:
        supervisor.kill()
        await launcher.collect(ORDER.job_id, 1)
        await launcher.close()
