"""A user with thousands of processes, which begin and end all the time: others are answered, and nodes released."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from malletrain.v1 import job_manager_pb2, scavenger_pb2
from tests.hostile.test_false_supervisor import ANN, BOB, NODES, PATIENCE, SETTINGS, Site
from tests.support.everybody import as_user, folder_of_everybody, python_of_everybody
from tests.support.stranger import needs_another_account
from tests.support.waiting import wait_until
from tests.system.deployment import deployed

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(300), needs_another_account]

PROCESSES = 5000
ANSWER_SECONDS = 1.0
RELEASE_SECONDS = 30.0
# Each is a shell of a megabyte, with the job's folder in its environment: all of them have to be looked at.
MANY = """
import os, signal, sys, time
os.environ["MALLETRAIN_JOB_DIR"] = sys.argv[1]
os.environ["FILLING"] = "x" * 20_000
wanted = int(sys.argv[2])
for number in range(wanted):
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "300"])
print("there", flush=True)
deadline = time.monotonic() + 240
while time.monotonic() < deadline:
    for _ in range(20):
        if os.fork() == 0:
            os._exit(0)
    time.sleep(0.02)
    with open(os.devnull) as _:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            break
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with folder_of_everybody() as folder:
        python = str(python_of_everybody(folder, ANN))
        settings = SETTINGS.format(jobs=folder / "jobs", python=python)
        with deployed(folder / "state", settings, seconds=120) as system:
            yield Site(system, folder, python)


@contextlib.contextmanager
def many_processes(site: Site, job_id: str) -> Iterator[None]:
    """Thousands of processes of a user, which count as of its job; all end with the block."""
    command = [*as_user(BOB), site.python, "-c", MANY, str(site.folder / "jobs" / job_id), str(PROCESSES)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/", start_new_session=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "there"
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def test_others_are_served_beside_five_thousand_processes(site: Site) -> None:
    ann, bob = site.submit(ANN), site.submit(BOB)
    wait_until(lambda: site.nodes(ann) and site.nodes(bob), PATIENCE, "both jobs")
    (hers,) = site.nodes(ann)
    (his,) = set(NODES) - {hers}
    took: list[float] = []
    with many_processes(site, bob), contextlib.closing(site.system.stubs) as stubs, ThreadPoolExecutor(1) as pool:

        def drain(node: str) -> float:
            began = time.monotonic()
            request = scavenger_pb2.DrainNodesRequest(nodes=[node])
            while list(stubs.scavenger.DrainNodes(request, timeout=60).released) != [node]:
                assert time.monotonic() - began < RELEASE_SECONDS
            return time.monotonic() - began

        for node in (his, hers):
            release = pool.submit(drain, node)
            while not release.done():
                began = time.monotonic()
                stubs.job_manager.GetJob(job_manager_pb2.GetJobRequest(job_id=ann), timeout=30)
                took.append(time.monotonic() - began)
            print(f"{node}: released after {release.result():.2f} s")
        began = time.monotonic()
        stubs.job_manager.CancelJob(job_manager_pb2.CancelJobRequest(job_id=bob), timeout=60)
        print(f"cancelled after {time.monotonic() - began:.2f} s, GetJob at most {max(took):.3f} s of {len(took)}")
    assert max(took) < ANSWER_SECONDS
