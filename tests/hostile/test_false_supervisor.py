"""A user has put its own code into its job's supervisor: nobody else depends on what that says of nodes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from malletrain.cli.shared.settings import load
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.common.environment import JOB_DIR, NODE
from malletrain.common.processes import find_processes
from malletrain.runtime.access.credentials import FixedToken
from malletrain.v1 import job_manager_pb2, resources_pb2, scavenger_pb2
from tests.support.everybody import folder_of_everybody, python_of_everybody
from tests.support.stranger import needs_another_account
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(240), needs_another_account]

ANN, BOB = "www-data", "games"
NODES = ("n1", "n2")
PATIENCE = 60.0
USUAL_SECONDS = 8.0
"""Longest release: its grace (1.5 s), the answer of the supervisor (2 s), its end, and what a busy machine takes."""
SETTINGS = """
[scavenger]
source = "static"
nodes = ["n1", "n2"]
debounce_seconds = 0
[job_manager]
fair_share_half_life_seconds = 0
run_as = "owner"
min_uid = 5
jobs_dir = "{jobs}"
trainer_python = "{python}"
"""
FALSE = """
import sys
if "malletrain.supervisor" in sys.orig_argv:
    import os, signal, threading, time
    from malletrain.supervisor.loop import service
    from malletrain.v1 import supervisor_pb2 as pb
    how = os.environ["HOW"]
    Service, State = service.SupervisorService, pb.SupervisorState
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    true_set, true_watch, newest = Service.SetHosts, Service.WatchState, {}

    def lie(**more):
        state = State()
        state.CopyFrom(newest["published"].newest())
        for name, value in more.items():
            if isinstance(value, list):
                getattr(state, name)[:] = value
            else:
                setattr(state, name, value)
        return state

    def remember(self, *_):
        newest["published"] = self._published

    def never(self, request, context):
        time.sleep(600)

    def release(self, request, context):
        remember(self)
        if how == "never answers":
            time.sleep(600)
        if how == "large":
            return pb.ReleaseHostsResponse(state=lie(message="x" * (3 << 20)))
        return pb.ReleaseHostsResponse(state=lie(confirmed_hosts=[]))

    def stop(self, request, context):
        remember(self)
        if how == "never answers":
            time.sleep(600)
        return pb.StopResponse(state=lie(phase=pb.SUPERVISOR_PHASE_KEPT))

    def watch(self, request, context):
        remember(self)
        for number, state in enumerate(self._published.changes(context.is_active)):
            yield pb.WatchStateResponse(state=state)
            if len(state.confirmed_hosts) == 1:
                break
        while context.is_active():
            if how == "floods":
                number += 1
                yield pb.WatchStateResponse(state=lie(message=str(number) * 1000, idle_seconds=float("nan")))
            elif how == "large":
                yield pb.WatchStateResponse(state=lie(message="x" * (3 << 20)))
            elif how == "wrong":
                yield pb.WatchStateResponse(state=lie(commanded_sequence=2**40, confirmed_sequence=2**40,
                    confirmed_hosts=["n1", "n2", "n3", "", "../x"], usable_hosts=-5))
                time.sleep(0.1)
            else:
                time.sleep(0.5)

    Service.ReleaseHosts, Service.Stop, Service.WatchState = release, stop, watch
    open(os.path.join(sys.orig_argv[-1], "false"), "w").close()
"""


class Site:
    """An installation of root with two users' jobs."""

    def __init__(self, system: Deployment, folder: Path, python: str) -> None:
        self.system = system
        self.folder = folder
        self.python = python

    def submit(self, user: str, **environment: str) -> str:
        token = self.system.command("token", "--user", user, "--role", "user").stdout.strip()
        spec = resources_pb2.JobSpec(
            name=user,
            command=[self.python, "-c", "import time\nwhile True: time.sleep(1)"],
            working_directory="/",
            min_nodes=1,
            max_nodes=1,
            curve=[resources_pb2.ScalingPoint(nodes=1, rate=100.0)],
            scale_up_seconds=0.1,
            scale_down_seconds=0.1,
            backend=resources_pb2.LAUNCHER_BACKEND_COMMAND,
            environment=environment,
        )
        with contextlib.closing(ServiceStubs(load(self.system.config), FixedToken(token))) as stubs:
            request = job_manager_pb2.SubmitJobsRequest(specs=[spec])
            return str(stubs.job_manager.SubmitJobs(request, timeout=30).jobs[0].id)

    def nodes(self, job_id: str) -> list[str]:
        return list(self.system.job(job_id).confirmed_nodes)

    def processes(self, job_id: str, node: str = "") -> list[psutil.Process]:
        """Of a job, on a node or everywhere."""
        path = str(self.folder / "jobs" / job_id)
        found = find_processes(lambda env: env.get(JOB_DIR) == path and node in ("", env.get(NODE)))
        return [psutil.Process(one.id.pid) for one in found]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with folder_of_everybody() as folder:
        python = str(python_of_everybody(folder, ANN))
        (folder / "false").mkdir()
        (folder / "false/sitecustomize.py").write_text(FALSE)
        with deployed(folder / "state", SETTINGS.format(jobs=folder / "jobs", python=python)) as system:
            yield Site(system, folder, python)


@pytest.mark.parametrize("how", ["says yes", "never answers", "floods", "large", "wrong"])
def test_a_release_is_none_before_the_node_is_free(site: Site, how: str) -> None:
    ann = site.submit(ANN)
    wait_until(lambda: site.nodes(ann), PATIENCE, "the other user's job")
    services, (hers,) = site.system.pids(), site.nodes(ann)
    hers_pids = {one.pid for one in site.processes(ann)}
    bob = site.submit(BOB, HOW=how, PYTHONPATH=str(site.folder / "false"))
    with contextlib.closing(site.system.stubs) as stubs:
        (node,) = set(NODES) - {hers}
        wait_until(lambda: site.processes(bob, node), PATIENCE, "a worker of the false supervisor")
        assert (site.folder / "jobs" / bob / "false").exists(), "the user's code is not in it"
        wait_until(lambda: site.nodes(bob) or how == "wrong", PATIENCE, "its confirmation")
        began = time.monotonic()
        answer = stubs.scavenger.DrainNodes(scavenger_pb2.DrainNodesRequest(nodes=[node]), timeout=30)
        took = time.monotonic() - began
        left = site.processes(bob, node)
        print(f"{how}: confirmed {list(answer.released)} after {took:.2f} s, {len(left)} processes left")
        assert list(answer.released) == [node]
        assert not left, "it was confirmed"
        assert took < USUAL_SECONDS
        assert site.nodes(ann) == [hers]
        assert hers_pids <= {one.pid for one in site.processes(ann)}
        stubs.scavenger.ResumeNodes(scavenger_pb2.ResumeNodesRequest(nodes=[node]), timeout=30)
        wait_until(lambda: site.processes(bob, node), PATIENCE, "another worker")
        asked = time.monotonic()
        for job in (bob, ann):
            stubs.job_manager.CancelJob(job_manager_pb2.CancelJobRequest(job_id=job), timeout=30)
        ended = (resources_pb2.JOB_STATE_CANCELLED, resources_pb2.JOB_STATE_FAILED)
        wait_until(lambda: site.system.job(bob).state in ended, PATIENCE, "its end")
        assert not site.processes(bob)
        wait_until(lambda: site.system.job(ann).state in ended, PATIENCE, "the end of the other")
    print(f"{how}: the end took {time.monotonic() - asked:.1f} s")
    assert site.system.pids() == services
