"""Processes that have left their session and their environment, or that fork without a pause, end with their job."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from malletrain.common.accounts import account_named
from malletrain.common.cgroups import Cgroups, open_cgroups, own_folder
from malletrain.common.processes import ProcessId, identify, process_ids, read_arguments
from malletrain.common.start_process import start_process
from malletrain.job_manager.launching.job_cgroups import JobCgroups, folder_name
from tests.agent.running import RunningAgent, agents
from tests.job_manager.manager_process import ManagerProcess, manager_process, planned, serving
from tests.supervisor.running import supervised
from tests.support.certificates import certificate
from tests.support.everybody import folder_of_everybody
from tests.support.stranger import needs_another_account
from tests.support.waiting import wait_until, wait_until_async

pytestmark = [pytest.mark.processes, pytest.mark.long]

DAEMON = """
(setsid env -i /bin/sleep 600 </dev/null >/dev/null 2>&1 & echo $! > part-$MALLETRAIN_NODE)
mv part-$MALLETRAIN_NODE daemon-$MALLETRAIN_NODE
sleep 600
"""
FORKING = """
import os, sys, time
if os.fork():
    time.sleep(600)
os.setsid()
if "MALLETRAIN_JOB_ID" in os.environ:
    os.execve(sys.executable, [sys.executable, "-S", *sys.argv], {})
last = time.monotonic() + 120
while time.monotonic() < last:
    if os.fork():
        os._exit(0)
    os.setsid()
"""
"""Each of its processes ends as soon as it has started the next one, for two minutes."""


def _has_cgroups() -> bool:
    return open_cgroups("malletrain-tests", lambda _: None).folder is not None


needs_cgroups = pytest.mark.skipif(not _has_cgroups(), reason="this machine lets nobody make cgroups here")


def daemon_of(folder: Path, node: str = "n1") -> ProcessId:
    """The daemon on a node of a job that runs in a folder, once it looks like nobody's."""
    file = folder / f"daemon-{node}"
    wait_until(file.exists, 60, "the daemon")
    daemon = psutil.Process(int(file.read_text()))
    wait_until(lambda: daemon.environ() == {}, 30, "that it looks like nobody's")
    found = identify(daemon.pid)
    assert found is not None
    return found


@pytest.mark.timeout(180)
def test_a_daemon_of_a_job_on_a_virtual_node_ends_with_the_job(tmp_path: Path) -> None:
    with supervised(tmp_path, "n1", command=["/bin/sh", "-c", DAEMON], backend="command") as job:
        daemon = daemon_of(tmp_path)
        try:
            job.stop(1.0)
            job.outcome()
            wait_until(lambda: not daemon.alive(), 30, job.said)
        finally:
            daemon.kill()


async def _running(harness: ManagerProcess, folder: Path, command: str) -> tuple[str, ProcessId]:
    """Identifier and supervisor of a job that runs."""
    process, caller, _ = harness
    folder.mkdir()
    job_id = await caller.submit("sh", "-c", f"cd {folder}\n{command}")
    await planned(caller, 1, j1="n1")
    await caller.until(job_id, "RUNNING")
    found = json.loads((process.state_dir / "jobs" / job_id / "supervisor.json").read_text())
    return job_id, ProcessId(found["pid"], found["start_time"])


@needs_cgroups
@pytest.mark.timeout(180)
@pytest.mark.parametrize("job_manager_dies", [False, True])
async def test_a_daemon_ends_with_its_supervisor_that_was_killed(tmp_path: Path, job_manager_dies: bool) -> None:
    async with manager_process(tmp_path / "state", Path(sys.executable), backend="command") as harness:
        process, caller, _ = harness
        job_id, supervisor = await _running(harness, tmp_path / "work", DAEMON)
        daemon = daemon_of(tmp_path / "work")
        try:
            if job_manager_dies:
                process.kill()
            supervisor.kill(signal.SIGKILL)
            if job_manager_dies:
                assert daemon.alive(), "nobody has looked yet"
                process.start()
                await serving(caller)
            await wait_until_async(lambda: not daemon.alive(), 30, "the daemon's end")
            await caller.until(job_id, "WAITING")
        finally:
            daemon.kill()
    assert not (own_folder() / folder_name((tmp_path / "state" / "jobs").resolve())).exists()


def _forking(script: Path) -> list[int]:
    """Processes that run a script."""
    return [pid for pid in process_ids() if str(script) in read_arguments(pid)]


@needs_cgroups
@pytest.mark.timeout(180)
async def test_a_program_that_forks_without_a_pause_ends_when_its_node_is_released(tmp_path: Path) -> None:
    script = tmp_path / "forking.py"
    script.write_text(FORKING)
    async with manager_process(tmp_path / "state", Path(sys.executable), backend="command") as harness:
        _, caller, scavenger = harness
        await _running(harness, tmp_path / "work", f"exec {sys.executable} -S {script}")
        await wait_until_async(lambda: _is_forking(script), 30, "that it forks")
        begun = time.monotonic()
        scavenger.tell(left="n1")
        await wait_until_async(lambda: not _lasts(script), 60, "its end")
        assert time.monotonic() - begun < 30
        assert not (await caller.job("j000001")).confirmed_nodes


def _is_forking(script: Path) -> bool:
    seen = {pid for _ in range(20) for pid in _forking(script)}
    return len(seen) > 5


def _lasts(script: Path) -> bool:
    """Whether any look of several finds one: the next one may begin between two."""
    return any(_forking(script) for _ in range(50))


def supervised_on(agent: RunningAgent, folder: Path, command: list[str], **more: Any) -> Any:
    """A job on an agent's node; see `supervised`."""
    shown = certificate(folder, "supervisor")
    agents_of_nodes = {agent.node: agent.address}
    return supervised(
        folder / "job",
        agent.node,
        command=command,
        backend="command",
        agents=agents_of_nodes,
        certificate_file=shown,
        **more,
    )


@needs_cgroups
@pytest.mark.timeout(180)
def test_a_daemon_ends_when_an_agent_s_node_is_released_and_the_agent_stays(tmp_path: Path) -> None:
    with agents(tmp_path, "n1") as running:
        with supervised_on(running["n1"], tmp_path, ["/bin/sh", "-c", DAEMON], keep_seconds=60.0) as job:
            daemon = daemon_of(tmp_path / "job")
            try:
                job.release("n1", grace=1.0)
                assert not daemon.alive()
            finally:
                daemon.kill()
        assert running["n1"].process.poll() is None


@needs_cgroups
@pytest.mark.timeout(180)
def test_a_program_that_forks_without_a_pause_ends_with_the_agent(tmp_path: Path) -> None:
    script = tmp_path / "forking.py"
    script.write_text(FORKING)
    with (
        agents(tmp_path, "n1", grace=0.2) as running,
        supervised_on(running["n1"], tmp_path, [sys.executable, "-S", str(script)]),
    ):
        wait_until(lambda: _is_forking(script), 30, "that it forks")
        running["n1"].process.send_signal(signal.SIGTERM)
        assert running["n1"].process.wait(20) == 0
        assert not _lasts(script)


@needs_cgroups
@pytest.mark.timeout(180)
def test_the_next_agent_ends_what_a_killed_one_has_left(tmp_path: Path) -> None:
    with agents(tmp_path, "n1") as running:
        with supervised_on(running["n1"], tmp_path, ["/bin/sh", "-c", DAEMON]):
            daemon = daemon_of(tmp_path / "job")
            running["n1"].process.kill()
            running["n1"].process.wait()
            assert daemon.alive()
        try:
            with agents(tmp_path, "n1") as later:
                assert later["n1"].address
                wait_until(lambda: not daemon.alive(), 30, later["n1"].said)
        finally:
            daemon.kill()


@pytest.fixture
def groups() -> Iterator[Cgroups]:
    opened = open_cgroups(f"malletrain-tests-{os.getpid()}", print)
    yield opened
    opened.kill_all()
    for name in opened.names():
        opened.end(name, 5.0)
    opened.remove_all()


MOVES = """
import os
from pathlib import Path
own = Path("{group}")
for file in [folder / "cgroup.procs" for folder in (own, *own.parents[:2])] + [own / "cgroup.kill"]:
    try:
        file.write_text(str(os.getpid()))
        print("moved by", file)
    except OSError as error:
        print(type(error).__name__)
try:
    (own / "below").mkdir()
except OSError as error:
    print(type(error).__name__)
print(open("/proc/self/cgroup").read(), flush=True)
if os.fork() == 0:
    os.setsid()
    os.execve("/bin/sleep", ["sleep", "600"], {{}})
"""


@needs_cgroups
@needs_another_account
@pytest.mark.timeout(60)
def test_a_user_s_process_can_not_leave_its_cgroup_nor_can_what_it_starts(groups: Cgroups) -> None:
    account, group = account_named("www-data"), groups.make("one")
    assert group is not None
    with folder_of_everybody() as above:
        folder = above / "own"
        folder.mkdir()
        os.chown(folder, account.user_id, account.group_id)
        code = MOVES.format(group=group.folder)
        process = start_process(
            ["/usr/bin/python3", "-c", code], folder, {}, folder / "log", account=account, group=group
        )
        assert process.wait(30) == 0
        said = (folder / "log").read_text()
    assert said.count("PermissionError") == 5, said
    assert f"/{group.folder.parent.name}/one\n" in said
    assert group.has_processes, "what it has left behind"
    assert group.end(10.0)
    assert not group.folder.exists()


WIDE = """
mkdir inner
echo threaded > inner/cgroup.type
echo $$ > inner/cgroup.procs
for number in $(seq 600); do mkdir $number; done
setsid sleep 600 &
"""


@needs_cgroups
@needs_another_account
@pytest.mark.timeout(60)
async def test_what_an_owner_makes_in_the_job_s_cgroup_is_bounded_and_ends_with_it(tmp_path: Path) -> None:
    account, groups = account_named("www-data"), JobCgroups(tmp_path)
    own = groups.make("j000001", 1, account)
    assert own is not None
    with folder_of_everybody() as above:
        os.chown(above, account.user_id, account.group_id)
        process = start_process(["/bin/sh", "-c", WIDE], own.folder, {}, above / "log", account=account, group=own)
        assert process.wait(30) == 0
    assert len([path for path in own.folder.iterdir() if path.is_dir()]) < 512
    assert own.has_processes, "what it has left behind"
    await groups.end("j000001", 1)
    assert not own.folder.parent.exists()
    groups.close()
    assert not own.folder.parent.parent.exists()
