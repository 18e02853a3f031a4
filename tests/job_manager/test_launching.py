"""When a supervisor is started, and when not."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from malletrain.common.processes import find_processes
from malletrain.job_manager.jobs import JobSpec
from malletrain.job_manager.launching.accounts import CommonAccount
from malletrain.job_manager.launching.environment import MonitorAddress
from malletrain.job_manager.launching.launcher import SupervisorLauncher
from malletrain.job_manager.launching.processes import of_supervisor
from malletrain.job_manager.launching.starting import LaunchOrder, LaunchSettings
from malletrain.job_manager.launching.supervisor_client import NodeHost
from tests.job_manager.stand_in import make_python
from tests.support.job_secrets import job_secrets
from tests.support.waiting import wait_until_async

SPEC = JobSpec("job", ("sleep", "60"), "/", 1, 4)
ORDER = LaunchOrder("j000001", 1, "ada", SPEC, 1, ("n1",))


def _launcher(folder: Path) -> SupervisorLauncher:
    python = str(make_python(folder))
    settings = LaunchSettings(folder, folder / "jobs", python, MonitorAddress("127.0.0.1:1"))
    return SupervisorLauncher(settings, os.environ, job_secrets(folder / "own.pem"), CommonAccount())


async def test_no_supervisor_starts_before_it_is_known_where_its_nodes_are(tmp_path: Path) -> None:
    launcher = _launcher(tmp_path)
    asked: list[LaunchOrder] = []

    def order() -> LaunchOrder:
        asked.append(ORDER)
        return ORDER

    starting = asyncio.create_task(launcher.start(ORDER.job_id, 1, order))
    await wait_until_async(lambda: len(asked) > 2)
    assert launcher.folder(ORDER.job_id).launched() is None
    launcher.update_hosts({"n1": NodeHost(gpus=4)})
    await starting
    try:
        launch = launcher.folder(ORDER.job_id).launched()
        assert launch is not None
        assert launch["hosts"] == [{"name": "n1", "slots": 4, "agent": ""}]
        assert launch["certificate_file"] == str(tmp_path / "own.pem")
        launcher.update_hosts({"n2": NodeHost(gpus=4), "n3": NodeHost(gpus=2)})
        suits = {node: launcher.suits(ORDER.job_id, 1, SPEC, (node,)) for node in ("n2", "n3")}
        assert suits == {"n2": True, "n3": False}, "it starts four workers a node"
        assert not launcher.suits(ORDER.job_id, 2, SPEC, ("n2",))
    finally:
        await launcher.stop(ORDER.job_id, 1, 0.0)
        await launcher.collect(ORDER.job_id, 1)


async def test_a_job_that_shall_not_start_any_more_does_not_wait_for_that(tmp_path: Path) -> None:
    launcher = _launcher(tmp_path)
    await launcher.start(ORDER.job_id, 1, lambda: None)
    assert launcher.folder(ORDER.job_id).launched() is None


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
