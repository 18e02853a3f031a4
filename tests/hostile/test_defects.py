"""A defect in any task that lasts, of real services, agents and supervisors: the process ends and is started anew."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from malletrain.cli.shared.settings import load
from malletrain.common.launch_file import AgentAddress
from malletrain.common.tasks import DEFECT_STATUS
from malletrain.runtime.channel import serves
from malletrain.supervisor.workers.agent_links import AgentLinks
from malletrain.v1 import job_manager_pb2, resources_pb2
from tests.agent.registries import registry_in_thread
from tests.agent.running import RunningAgent, agents
from tests.hostile.defects import Defects
from tests.hostile.tasks_made_to_fail import (
    EFFECT,
    END_SUPERVISORS,
    OF_AGENTS,
    OF_REGISTRATIONS,
    OF_SERVICES,
    TOLD_BY_SUPERVISORS,
)
from tests.scavenger.recorded_commands import RecordedCommands
from tests.supervisor.running import supervised
from tests.support.certificates import certificate
from tests.support.ports import free_port
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(180)]


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Processes that are started meanwhile inherit these."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def settings(folder: Path) -> str:
    """All that a service can have a task for is on."""
    commands = RecordedCommands(folder)
    sinfo, squeue = commands.add("sinfo", "idle|n1\nidle|n2\n"), commands.add("squeue")
    scontrol = commands.add("scontrol", "No reservations in the system\n")
    metrics = "".join(f'{name} = "127.0.0.1:{free_port()}"\n' for name in OF_SERVICES)
    return f"""monitor_for_nodes = "127.0.0.1:{free_port()}"
[metrics]
{metrics}
[access]
viewer_folder = "{folder}/viewer"
[allocator]
auto_tune = "advise"
[job_manager.notifications]
command = ["/bin/cat"]
[scavenger]
source = "slurm"
debounce_seconds = 0
[scavenger.notifications]
command = ["/bin/cat"]
[scavenger.slurm]
partitions = ["main"]
sinfo = "{sinfo}"
squeue = "{squeue}"
scontrol = "{scontrol}"
[scavenger.slurm.hold]
ssh = ["/bin/true"]
agents_address = "127.0.0.1:{free_port()}"
python = "{sys.executable}"
"""


class Installation(NamedTuple):
    """Services, and what orders defects of them."""

    system: Deployment
    defects: Defects


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("services")
    defects = Defects(folder / "defects")
    (folder / "viewer").mkdir(mode=0o750)
    with environment(**defects.environment):
        starting = deployed(folder / "up", settings(folder))
        system = starting.__enter__()
    with contextlib.ExitStack() as stack:
        stack.push(starting)
        yield Installation(system, defects)


@pytest.mark.parametrize(("service", "key"), [(name, key) for name, keys in OF_SERVICES.items() for key in keys])
def test_a_service_ends_and_is_started_anew(installation: Installation, service: str, key: str) -> None:
    system, defects = installation
    before = system.pids()[service]
    defects.order(key, service)
    check_restart(installation, service, key, before)


def check_restart(installation: Installation, service: str, key: str, before: int) -> None:
    """The defect has ended the process with an error, which it tells, and another one serves."""
    system, defects = installation
    wait_until(lambda: defects.raised_in == before, 60, f"the defect of {key}")
    wait_until(lambda: system.pids().get(service) not in (None, before), 30, f"the end of {service}")
    wait_until(lambda: answers(system, service), 30, f"another {service}")
    assert all(answers(system, other) for other in OF_SERVICES)
    said = (system.folder / "logs" / f"{service}.log").read_text()
    assert f"InjectedError: {key}" in said, "it says why it has ended"
    ends = [line for line in (system.folder / "up.log").read_text().splitlines() if line.startswith(f"{service} ended")]
    assert ends
    assert " ended with 0;" not in ends[-1]


def answers(system: Deployment, service: str) -> bool:
    return serves(load(system.config).peer(service))


JOB = resources_pb2.JobSpec(
    name="a",
    command=["sleep", "600"],
    working_directory="/",
    min_nodes=1,
    max_nodes=1,
    curve=[resources_pb2.ScalingPoint(nodes=1, rate=1.0)],
    backend=resources_pb2.LAUNCHER_BACKEND_COMMAND,
)


def test_an_effect_that_fails_ends_job_manager_and_is_repeated(tmp_path: Path) -> None:
    defects = Defects(tmp_path / "defects")
    nodes = '[scavenger]\nsource = "static"\nnodes = ["n1"]\ndebounce_seconds = 0\n'
    with environment(**defects.environment), deployed(tmp_path / "up", nodes) as system:
        before = system.pids()["job_manager"]
        defects.order(EFFECT, "job_manager")
        with contextlib.closing(system.stubs) as stubs:
            job = stubs.job_manager.SubmitJobs(job_manager_pb2.SubmitJobsRequest(specs=[JOB]), timeout=30).jobs[0]
        check_restart(Installation(system, defects), "job_manager", EFFECT, before)
        wait_until(lambda: system.state(job.id) == "RUNNING", 60, "the job's start")


WORKER = "import time; time.sleep(600)"
LEFT = "import subprocess; subprocess.Popen(['setsid', 'env', '-i', 'sleep', '{0}']);" + WORKER


def sleeps(seconds: str) -> bool:
    return any(process.info["cmdline"] == ["sleep", seconds] for process in psutil.process_iter(["cmdline"]))


@pytest.mark.parametrize("key", OF_AGENTS)
def test_an_agent_leaves_its_node(tmp_path: Path, key: str) -> None:
    defects = Defects(tmp_path / "defects")
    left = str(time.time_ns() % 10**9)
    with environment(**defects.environment), agents(tmp_path / "agents", "n1") as running:
        agent = running["n1"]
        shown = certificate(tmp_path / "agents", "supervisor")
        with supervised(
            tmp_path / "job",
            "n1",
            command=[sys.executable, "-c", LEFT.format(left)],
            backend="command",
            agents={"n1": agent.address},
            certificate_file=shown,
        ) as job:
            wait_until(lambda: sleeps(left), 60, "a worker, and what it has set free")
            defects.order(key, "malletrain.agent")
            assert agent.process.wait(60) == DEFECT_STATUS, agent.said
            wait_until(lambda: not job.processes("n1") and not sleeps(left), 10, "the end of both")
    assert key in agent.said


def test_an_agent_registers_again(tmp_path: Path) -> None:
    """What ends the sending on a stream to the Scavenger ends the stream, and the next one begins."""
    defects = Defects(tmp_path / "defects")
    with registry_in_thread(tmp_path / "agents") as (registry, address), environment(**defects.environment):
        agent = RunningAgent("n1", tmp_path / "agents", address, 1.5)
        try:
            wait_until(lambda: "n1" in registry.present, 60, "its registration")
            for key in OF_REGISTRATIONS:
                began = registry.present["n1"]
                defects.order(key)
                wait_until(lambda: defects.raised_in == agent.process.pid, 60, f"the defect of {key}")
                wait_until(lambda began=began: registry.present.get("n1", began) is not began, 30, "another stream")
            assert agent.process.poll() is None
        finally:
            agent.close()


@pytest.mark.parametrize(("backend", "key"), END_SUPERVISORS)
def test_a_supervisor_ends_with_its_workers(tmp_path: Path, backend: str, key: str) -> None:
    if "horovod" in backend:
        pytest.importorskip("horovod.torch", reason="needs Horovod: run deploy/install-horovod.sh")
    defects = Defects(tmp_path / "defects")
    script = tmp_path / "script.py"
    script.write_text(("import horovod.torch as hvd\nhvd.init()\n" if "plain" in backend else "") + WORKER)
    command = [sys.executable, str(script)]
    with (
        environment(**defects.environment),
        supervised(tmp_path / "job", "n1", command=command, backend=backend.removeprefix("plain-")) as job,
    ):
        wait_until(job.processes, 60, "a worker")
        defects.order(key, "malletrain.supervisor")
        assert job.process.wait(60) == DEFECT_STATUS, job.said
        wait_until(lambda: not job.processes(), 10, "the end of its workers")
        assert f"InjectedError: {key}" in job.said


def test_a_supervisor_says_why_torch_could_not_be_imported(tmp_path: Path) -> None:
    defects = Defects(tmp_path / "defects")
    (key,) = TOLD_BY_SUPERVISORS
    defects.order(key)
    command = [sys.executable, "-c", WORKER]
    with (
        environment(**defects.environment),
        supervised(tmp_path / "job", "n1", command=command, backend="torchrun") as job,
    ):
        outcome = job.outcome()
    assert outcome["outcome"] == "FAILED"
    assert key in outcome["message"]


def test_the_link_to_an_agent_that_has_failed_is_replaced(tmp_path: Path) -> None:
    with agents(tmp_path, "n1") as running:
        links = AgentLinks(certificate(tmp_path, "supervisor"))
        links.update({"n1": AgentAddress(running["n1"].address)})
        first = links.get("n1")
        assert first is not None
        wait_until(lambda: first.sweep("none"), 30, "the connection")
        first._handle = _raise
        assert not first.sweep("none")
        assert first.is_lost
        second = links.get("n1")
        assert second not in (None, first)
        wait_until(lambda: second is not None and second.sweep("none"), 30, "another connection")
        links.close()


def _raise(response: object) -> None:
    raise RuntimeError(f"a defect at {response}")


def test_a_supervisor_ends_although_its_stop_has_failed(tmp_path: Path) -> None:
    defects = Defects(tmp_path / "defects")
    command = [sys.executable, "-c", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WORKER]
    with (
        environment(**defects.environment),
        supervised(tmp_path / "job", "n1", command=command, backend="command") as job,
    ):
        wait_until(job.processes, 60, "a worker")
        defects.order("supervisor/__main__.py:stop")
        job.process.terminate()
        assert job.process.wait(60) in (0, DEFECT_STATUS), job.said
        wait_until(lambda: not job.processes(), 10, "the end of its workers")


_OUTAGE = """
import pathlib, time
from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.postgresql import Outage
connects = []
def connect(_):
    connects.append(1)
    raise OSError("no server") if len(connects) == 1 else SystemExit("a defect")
outage = Outage(DatabaseAddress("monitor", pathlib.Path("/")), connect)
try:
    outage.connect({})
except OSError:
    outage.begin()
time.sleep(600)
"""


def test_a_service_ends_whose_outage_would_not_end() -> None:
    done = subprocess.run([sys.executable, "-c", _OUTAGE], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == DEFECT_STATUS
    assert "a defect" in done.stderr
