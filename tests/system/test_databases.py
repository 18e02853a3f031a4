"""The five services on PostgreSQL whose connections and server are killed; backup and restore with real jobs."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from malletrain.v1 import job_manager_pb2, monitor_pb2, resources_pb2
from tests.support.postgresql import PostgresServer, postgresql_server
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed, run_command

pytestmark = [pytest.mark.long, pytest.mark.system]

SETTINGS = """
[scavenger]
source = "static"
nodes = ["n1", "n2", "n3", "n4"]
debounce_seconds = 0
[job_manager]
max_parallel = 2
backend = "command"
"""
TRAINER = """
import os, sys, time
from pathlib import Path
from malletrain.client import report
path = Path(os.environ["MALLETRAIN_JOB_DIR"]) / f"steps-{os.environ.get('RANK', 0)}"
done = int(path.read_text()) if path.exists() else 0
print("begins at", done, flush=True)
for step in range(done, int(sys.argv[1])):
    time.sleep(0.02)
    report(32)
    path.with_suffix(".new").write_text(str(step + 1))
    path.with_suffix(".new").replace(path)
"""
STEPS = 500


def submit(system: Deployment, name: str, steps: int, least: int = 1, most: int = 1) -> None:
    script = system.folder / "trainer.py"
    script.write_text(TRAINER)
    options = ("--backend", "command", "--name", name, "--min", str(least), "--max", str(most))
    done = system.command("submit", *options, "--", sys.executable, str(script), str(steps))
    assert done.returncode == 0, done.stderr


class Observer:
    """Asks the services, without a process for each question: there may be many."""

    def __init__(self, system: Deployment) -> None:
        self.stubs = system.stubs

    def jobs(self) -> dict[str, resources_pb2.Job]:
        """All jobs by name."""
        answer = self.stubs.job_manager.ListJobs(job_manager_pb2.ListJobsRequest(), timeout=10)
        return {job.spec.name: job for job in answer.jobs}

    def wait_for(self, name: str, state: str) -> None:
        """Wait until a job is in a state. Meanwhile the database may be away."""

        def is_there() -> bool:
            try:
                found = self.jobs()[name].state
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:  # type: ignore[attr-defined]
                    raise
                return False
            return resources_pb2.JobState.Name(found) == f"JOB_STATE_{state}"

        wait_until(is_there, 80, f"{name} is {state}")

    def samples(self, job_id: str) -> int:
        """What Monitor has counted."""
        request = monitor_pb2.GetProgressRequest(job_ids=[job_id])
        return sum(found.samples for found in self.stubs.monitor.GetProgress(request, timeout=10).progress)

    def states(self, job_id: str) -> list[str]:
        """States of a job, in order."""
        request = job_manager_pb2.ListJobEventsRequest(job_id=job_id)
        events = self.stubs.job_manager.ListJobEvents(request, timeout=10).events
        return [resources_pb2.JobState.Name(event.to_state).removeprefix("JOB_STATE_") for event in events]

    def check_no_node_twice(self) -> None:
        """No node is used by two jobs."""
        held = [node for job in self.jobs().values() for node in job.confirmed_nodes]
        assert len(held) == len(set(held)), held


@contextmanager
def disturbed(server: PostgresServer) -> Iterator[list[int]]:
    """End all connections again and again; the server itself is killed once, and started again a second later."""
    ending = threading.Event()
    ended: list[int] = []

    def disturb() -> None:
        for number in itertools.count():
            if ending.wait(0.3):
                return
            if number == 5:
                server.kill()
                ending.wait(1)
                server.start()
            ended.append(server.end_connections())

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        yield ended
    finally:
        ending.set()
        thread.join()


def test_real_jobs_on_a_database_that_is_killed(tmp_path: Path) -> None:
    with postgresql_server() as server:
        password = server.password_file.read_text().strip()
        shared = f'database_url = "{server.new_database()}"\ndatabase_password_file = "{server.password_file}"'
        with deployed(tmp_path / "state", SETTINGS, shared=shared) as system:
            observer, pids = Observer(system), system.pids()
            submit(system, "single", STEPS)
            submit(system, "elastic", STEPS, most=3)
            observer.wait_for("single", "RUNNING")
            with disturbed(server) as ended:
                observer.wait_for("single", "COMPLETED")
                observer.wait_for("elastic", "COMPLETED")
            assert sum(ended) > 10
            assert system.pids() == pids, "no service has ended"
            found = observer.jobs()
            wait_until(lambda: observer.samples(found["single"].id) == STEPS * 32, 30, "every record is counted once")
            for job in found.values():
                states = observer.states(job.id)
                assert (states.count("STARTING"), states.count("COMPLETED")) == (1, 1)
            assert list((tmp_path / "state").glob("*.sqlite")) == []
            logs = b"".join(path.read_bytes() for path in (tmp_path / "state" / "logs").iterdir())
            assert password.encode() not in logs
            for pid in (system.process.pid, *pids.values()):
                assert password.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_backup_under_load_is_restored_and_jobs_go_on(tmp_path: Path) -> None:
    folder, archive = tmp_path / "state", str(tmp_path / "backup.tar.gz")
    with deployed(folder, SETTINGS) as system:
        observer = Observer(system)
        submit(system, "long", 100_000, most=2)
        submit(system, "other", 100_000)
        for name in ("long", "other"):
            observer.wait_for(name, "RUNNING")
        with submitting(observer) as submitted:
            made = system.command("backup", archive, timeout=60)
        assert made.returncode == 0, made.stderr
        submit(system, "later", 10)
        later = observer.jobs()["later"]
        refused = system.command("restore", archive, "--force", timeout=60)
        assert refused.returncode == 1
        assert "another `malletrain up` runs" in refused.stderr
        path = folder / "jobs" / observer.jobs()["long"].id / "steps-0"
        steps = int(path.read_text())
    restored = run_command("restore", archive, "--force", cwd=folder, timeout=60)
    assert restored.returncode == 0, restored.stderr
    with deployed(folder, SETTINGS) as system:
        observer = Observer(system)
        found = observer.jobs()
        assert {"long", "other"} <= set(found) <= {"long", "other", *submitted}
        observer.wait_for("long", "RUNNING")
        wait_until(lambda: int(path.read_text()) > steps, 60, "the job goes on from where it was")
        observer.check_no_node_twice()
        submit(system, "new", 10)
        assert observer.jobs()["new"].id > later.id, "no number is given twice, also of jobs that no backup knows"


@contextmanager
def submitting(observer: Observer) -> Iterator[list[str]]:
    """Submit a job that can't run yet, again and again."""
    ending = threading.Event()
    names: list[str] = []

    def submit_more() -> None:
        while not ending.wait(0.02):
            name = f"more-{len(names)}"
            spec = resources_pb2.JobSpec(name=name, command=["true"], working_directory="/", min_nodes=1, max_nodes=1)
            observer.stubs.job_manager.SubmitJobs(job_manager_pb2.SubmitJobsRequest(specs=[spec]), timeout=10)
            names.append(name)

    thread = threading.Thread(target=submit_more)
    thread.start()
    try:
        yield names
    finally:
        ending.set()
        thread.join()
