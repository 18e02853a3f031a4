"""What a script has reported before its end arrives, however it ends; and nobody waits long for that."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from malletrain.common.job_folder import DELIVERY_SECONDS, LAST_DELIVERY_SECONDS
from tests.agent.running import agents
from tests.client.peers import RecordingMonitor
from tests.supervisor.running import Supervised, supervised
from tests.support.certificates import certificate
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

REPORTS = 40
BEGIN = f"""
import os, signal, subprocess, sys, time
from malletrain.client import _client, install_signal_handler, report, should_stop
from malletrain.client.ring import FLOOR
with open("started", "a") as file:
    file.write("x")
report(8)
while os.environ["MALLETRAIN_MONITOR"] != "127.0.0.1:9" and not _client._ring.words[FLOOR]:
    time.sleep(0.01)  # a sidecar boots as long as the machine is busy; from here on it delivers
for _ in range({REPORTS} - 1):
    report(8)
"""
ENDS = {
    "at once": "os._exit(1)",
    "an error": "raise ValueError('no such data set')",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
}
UNTIL_ASKED = """
install_signal_handler()
while not should_stop():
    time.sleep(0.01)
for _ in range(10):
    report(8)
sys.exit(int(os.environ["STATUS"]))
"""
STRAY = """
subprocess.Popen(["sleep", "600"], process_group=0)
os._exit(1)
"""


@pytest.fixture
def monitor() -> Iterator[RecordingMonitor]:
    found = RecordingMonitor()
    found.start()
    yield found
    found.stop()


def program(body: str) -> list[str]:
    return [sys.executable, "-c", BEGIN + body]


def starts(job: Supervised) -> int:
    path = job.folder / "started"
    return len(path.read_text()) if path.exists() else 0


@pytest.mark.parametrize("end", ENDS)
def test_a_script_that_ends_itself_loses_no_report(tmp_path: Path, monitor: RecordingMonitor, end: str) -> None:
    environment = {"MALLETRAIN_MONITOR": monitor.address}
    with supervised(tmp_path, "n1", command=program(ENDS[end]), environment=environment, backend="command") as job:
        if end == "killed":  # started again and again: that is no fault of the script
            wait_until(lambda: starts(job) > 2, 60, "further starts")
            job.stop(grace=5)
        assert job.outcome()["outcome"] in ("FAILED", "STOPPED"), job.said
        assert not job.processes()
    delivered = [len(records) for records in monitor.records.values() if records]
    whole = 2 if end == "killed" else 1  # the last start was stopped; an end by the script ends its supervisor
    assert delivered[:whole] == [REPORTS] * whole, job.said


@pytest.mark.parametrize("status", [0, 1])
@pytest.mark.parametrize("how", ["stop", "release", "growth"])
def test_nor_does_one_that_is_asked_to_leave(tmp_path: Path, monitor: RecordingMonitor, how: str, status: int) -> None:
    environment = {"MALLETRAIN_MONITOR": monitor.address, "STATUS": str(status)}
    command = program(UNTIL_ASKED)
    with supervised(tmp_path, "n1", command=command, environment=environment, backend="command") as job:
        wait_until(lambda: monitor.delivered == REPORTS, 60, "the first reports")
        match how:
            case "stop":
                job.stop(grace=10)
            case "release":
                job.release("n1", grace=10)
                assert not job.processes()
            case "growth":
                job.command("n1", "n2")
                wait_until(lambda: len(monitor.records) > 1, 60, "the next generation")
        first = next(iter(monitor.records))
        wait_until(lambda: len(monitor.records[first]) == REPORTS + 10, 10, "the last reports")


def test_what_never_ends_is_killed_and_delays_no_node_beyond_its_grace(tmp_path: Path) -> None:
    with supervised(tmp_path, "n1", command=program(STRAY), backend="command") as job:
        wait_until(lambda: starts(job) > 0, 60, "the program")
        began, grace = time.monotonic(), 2.0
        job.release("n1", grace=grace)
        took = time.monotonic() - began
        assert not job.processes()
    assert took < grace + 5.0, job.said  # not the 600 s of what was left


def test_it_is_killed_while_the_job_goes_on(tmp_path: Path, monitor: RecordingMonitor) -> None:
    body = """
if os.path.exists("once"):
    while True:
        time.sleep(1)
open("once", "w").close()
subprocess.Popen(["sleep", "600"], process_group=0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {"MALLETRAIN_MONITOR": monitor.address}
    with supervised(tmp_path, "n1", command=program(body), environment=environment, backend="command") as job:
        wait_until(lambda: starts(job) == 2, 60, "the second start")
        # The worker that runs, its sidecar, and the next generation's worker.
        wait_until(lambda: not any(_is_sleep(pid) for pid in job.processes()), 30, "the end of what was left")


def _is_sleep(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "sleep"
    except OSError:
        return False


@pytest.mark.parametrize("how", ["release", "an end of its own"])
def test_nor_do_workers_on_other_nodes(tmp_path: Path, monitor: RecordingMonitor, how: str) -> None:
    environment = {"MALLETRAIN_MONITOR": monitor.address, "STATUS": "1"}
    body = UNTIL_ASKED if how == "release" else ENDS["at once"]
    with agents(tmp_path, "n1") as running:
        where = {"n1": running["n1"].address}
        with supervised(
            tmp_path / "job",
            "n1",
            command=program(body),
            environment=environment,
            backend="command",
            agents=where,
            certificate_file=certificate(tmp_path, "supervisor"),
        ) as job:
            wait_until(lambda: monitor.delivered >= REPORTS, 60, "the first reports")
            expected = REPORTS
            if how == "release":
                job.release("n1", grace=10)
                expected += 10
            first = next(iter(monitor.records))
            wait_until(lambda: len(monitor.records[first]) == expected, 10, "the last reports")
            assert how != "release" or not job.processes()


UNTIL_TOLD = """
while not os.path.exists("go"):
    time.sleep(0.01)
for _ in range(10):
    report(8)
"""


@contextmanager
def over_while_monitor_is_away(tmp_path: Path, monitor: RecordingMonitor, where: str) -> Iterator[Supervised]:
    """A job whose training has ended, and whose sidecar has been without Monitor for longer than others may take."""
    environment = {"MALLETRAIN_MONITOR": monitor.address}
    with ExitStack() as stack:
        apart = {}
        if where == "another node":
            running = stack.enter_context(agents(tmp_path, "n1"))
            apart = {"agents": {"n1": running["n1"].address}, "certificate_file": certificate(tmp_path, "supervisor")}
        job = stack.enter_context(
            supervised(
                tmp_path / "job",
                "n1",
                command=program(UNTIL_TOLD),
                environment=environment,
                backend="command",
                **apart,
            )
        )
        wait_until(lambda: monitor.delivered == REPORTS, 60, "the first reports")
        monitor.stop()
        (job.folder / "go").touch()
        wait_until(lambda: "the training is over" in job.said, 60, "the end of the training")
        usual_end = time.monotonic() + DELIVERY_SECONDS + 2
        wait_until(lambda: time.monotonic() > usual_end, 15, "the time at which others are killed")
        yield job


@pytest.mark.parametrize("where", ["this machine", "another node"])
def test_a_job_that_is_over_while_monitor_is_away_loses_no_report(
    tmp_path: Path, monitor: RecordingMonitor, where: str
) -> None:
    with over_while_monitor_is_away(tmp_path, monitor, where) as job:
        monitor.start()
        assert job.outcome()["outcome"] == "EXITED", job.said
        assert not job.processes()
    assert monitor.delivered == REPORTS + 10


def test_but_who_wants_its_node_does_not_wait_for_that(tmp_path: Path, monitor: RecordingMonitor) -> None:
    with over_while_monitor_is_away(tmp_path, monitor, "this machine") as job:
        began = time.monotonic()
        job.release("n1", grace=20)
        took = time.monotonic() - began
        assert not job.processes()
    assert took < LAST_DELIVERY_SECONDS / 2, job.said
