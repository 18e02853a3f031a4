"""When JobManager starts its standby process: its imports must not delay what is urgent."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from malletrain.job_manager.launching.launch_settings import LaunchSettings, MonitorAddress
from malletrain.job_manager.launching.starting import LaunchOrder, SupervisorStarter
from malletrain.job_manager.launching.supervisor_client import NodeHost
from malletrain.job_manager.machine.jobs import JobSpec
from tests.job_manager.serving import processes_of, serve_manager
from tests.job_manager.stand_in import make_python
from tests.support.job_secrets import job_secrets
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.processes

SPEC = JobSpec(name="job", command=("python", "train.py"), working_directory="/", min_nodes=1, max_nodes=4)


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[SupervisorStarter]:
    settings = LaunchSettings(tmp_path, tmp_path / "jobs", sys.executable, MonitorAddress("127.0.0.1:1"))
    settings = replace(settings, standby_memory_bytes=1 << 30, forks_supervisors=True)
    hosts = {"n1": NodeHost(), "n2": NodeHost(agent="127.0.0.1:2")}
    starter = SupervisorStarter(settings, os.environ, job_secrets(tmp_path / "own.pem"), hosts)
    yield starter
    starter.close()


def order(spec: JobSpec, node: str = "n1") -> LaunchOrder:
    return LaunchOrder("j000001", 1, "ada", spec, 1, (node,))


def test_it_waits_until_it_may_start_and_is_looked_after_then(starter: SupervisorStarter) -> None:
    found = []
    for may_start in (False, True, False):
        starter.tend_standby([SPEC], may_start=may_start)
        found.append(starter.standby_pids)
    assert found[0] == set()
    assert len(found[1]) == 1
    assert found[1] == found[2]


def test_jobs_with_variables_that_matter_have_one_of_their_own(starter: SupervisorStarter) -> None:
    other = replace(SPEC, environment={"OMP_NUM_THREADS": "3"})
    assert not starter.awaits_standby(order(other)), "none may start yet"
    assert starter.standby_pids == set()
    starter.tend_standby([SPEC], may_start=True)
    first = starter.standby_pids
    assert not starter.awaits_standby(order(other, "n2")), "its workers are forked on another machine"
    assert starter.standby_pids == first
    assert starter.awaits_standby(order(other))
    both = starter.standby_pids
    assert first < both
    assert len(both) == 2
    assert starter.awaits_standby(order(replace(SPEC, environment={"LABEL": "3"})))
    starter.tend_standby([SPEC, other], may_start=False)
    assert starter.standby_pids == both


@pytest.mark.system
async def test_jobs_are_found_again_and_nodes_given_back_before(tmp_path: Path) -> None:
    python = make_python(tmp_path)
    async with serve_manager(tmp_path / "state", python, stop_jobs_on_exit=False) as earlier:
        job_id = await earlier.submit()
        await earlier.plan(1, j1="n1 n2")
        await earlier.until(job_id, "RUNNING")
        assert earlier.manager.engine.is_quiet
        supervisor = earlier.manager.launcher.folder(job_id).supervisor()
        assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGSTOP)
    async with serve_manager(tmp_path / "state", python) as harness:
        engine = harness.manager.engine
        assert not engine.is_quiet, "its supervisor has not answered"
        os.kill(supervisor.pid, signal.SIGCONT)
        await wait_until_async(lambda: engine.is_quiet)
        os.kill(supervisor.pid, signal.SIGSTOP)
        harness.scavenger.tell(left="n2")
        await wait_until_async(lambda: engine.state.jobs[job_id].releases)
        assert not engine.is_quiet, "n2 is being given back"
        os.kill(supervisor.pid, signal.SIGCONT)
        await wait_until_async(lambda: engine.is_quiet)
    assert not processes_of(tmp_path)
