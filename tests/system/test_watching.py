"""What the command tells of live services, also over a kill -9: outlooks, ends of jobs, logs, explanations."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from malletrain.cli.shared.output import state_name
from malletrain.cli.shared.settings import load
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.runtime.channel import open_blocking_channel
from malletrain.v1 import allocator_pb2, allocator_pb2_grpc, job_manager_pb2, monitor_pb2, resources_pb2, scavenger_pb2
from tests.support.terminal import Terminal, interruptible
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.long, pytest.mark.system, pytest.mark.timeout(600)]

SECONDS = 120.0
SCRIPT = Path(__file__).with_name("scripts") / "steady.py"
SETTINGS = """
[access]
munge = "off"
[scavenger]
source = "static"
nodes = ["n1", "n2", "n3"]
debounce_seconds = 0
reclaim_hold_seconds = 1
[job_manager]
reconcile_seconds = 0.1
restart_backoff_seconds = 0.1
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("watching"), SETTINGS, seconds=SECONDS) as deployment:
        yield deployment


def arguments(folder: Path, *options: str, status: int = 0) -> list[str]:
    """A submission of a job that trains until `folder/go` is there."""
    folder.mkdir(exist_ok=True)
    shape = ("--backend", "command", "--profile", "never", "--min", "1", "--max", "1", "--max-restarts", "0")
    return ["submit", *shape, *options, "--", sys.executable, str(SCRIPT), str(folder), str(int(status))]


def begin(system: Deployment, *words: str, out: Path) -> subprocess.Popen[bytes]:
    """Run a verb that takes long; what it writes goes to a file."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLETRAIN_")}
    with out.open("wb") as file, out.with_suffix(".err").open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "malletrain.cli.main", *words],
            cwd=system.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=errors,
            preexec_fn=interruptible,
        )


def submitted(system: Deployment, folder: Path, *options: str) -> str:
    done = system.command(*arguments(folder, *options), timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def json_of(system: Deployment, *words: str) -> Any:
    done = system.command(*words, "--json", timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def text_of(system: Deployment, *words: str) -> str:
    done = system.command(*words, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def kill(system: Deployment, service: str) -> None:
    """kill -9 of a service; `malletrain up` starts the next one."""
    before = system.pids()[service]
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: system.pids().get(service, before) != before, SECONDS, f"the next {service}")


@contextmanager
def called(system: Deployment) -> Iterator[ServiceStubs]:
    stubs = system.stubs
    try:
        yield stubs
    finally:
        stubs.close()


def job_of(system: Deployment, job_id: str) -> resources_pb2.Job:
    with called(system) as stubs:
        request = job_manager_pb2.GetJobRequest(job_id=job_id)
        return stubs.job_manager.GetJob(request, timeout=SECONDS, wait_for_ready=True).job


def state(system: Deployment, job_id: str) -> str:
    return state_name(job_of(system, job_id).state)


def rate(system: Deployment, job_id: str) -> float:
    with called(system) as stubs:
        request = monitor_pb2.GetProgressRequest(job_ids=[job_id])
        return sum(entry.rate for entry in stubs.monitor.GetProgress(request, timeout=SECONDS).progress)


def test_progress_rate_and_time_left_of_a_job_that_trains(system: Deployment, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    job_id = submitted(system, folder, "--curve", "1:500", "--target-samples", "1000000000")
    try:
        wait_until(lambda: rate(system, job_id), SECONDS, "a measured rate")

        def bounded() -> Any:
            """The outlook; the first rates of a busy machine are too uncertain for a latest end."""
            outlook = json_of(system, "job", job_id)["outlook"]
            return outlook if outlook.get("latestSeconds") is not None else None

        found = wait_until(bounded, SECONDS, "a rate that is known well enough")
        assert 0 < found["share"] < 1
        assert found["soonestSeconds"] <= found["expectedSeconds"] <= found["latestSeconds"]
        (listed,) = (entry for entry in json_of(system, "jobs") if entry["id"] == job_id)
        assert listed["outlook"]["samples"] >= found["samples"]
        table = text_of(system, "jobs")
        assert "samples/s" in table
        assert "1,000,000,000 (0%)" in table
        assert re.search(r"done in  \d+d \d\dh \(", text_of(system, "job", job_id))
        without = submitted(system, tmp_path / "other")
        assert json_of(system, "job", without)["outlook"]["unknown"] == "no target"
        text_of(system, "cancel", without)
    finally:
        (folder / "go").touch()
    wait_until(lambda: state(system, job_id) == "COMPLETED", SECONDS, "its end")
    assert json_of(system, "job", job_id)["outlook"]["unknown"] == "ended"


@pytest.mark.parametrize(
    ("ending", "status", "last"), [("go", 0, "COMPLETED"), ("fail", 3, "FAILED"), ("cancel", 4, "CANCELLED")]
)
def test_submit_waits_for_the_end_also_across_a_restart_of_jobmanager(
    system: Deployment, tmp_path: Path, ending: str, status: int, last: str
) -> None:
    folder, out = tmp_path / "job", tmp_path / "out"
    waiting = begin(system, *arguments(folder, "--wait", status=ending == "fail"), out=out)
    try:
        told = out.with_suffix(".err")
        wait_until(lambda: "RUNNING" in told.read_text(), SECONDS, "a running job")
        job_id = out.read_text().strip()
        if ending == "go":
            kill(system, "job_manager")
            (folder / "go").touch()  # it may end before JobManager is back
            wait_until(lambda: "does not answer" in told.read_text(), SECONDS, "the outage is told")
        elif ending == "fail":
            (folder / "go").touch()
        else:
            text_of(system, "cancel", job_id)
        assert waiting.wait(2 * SECONDS) == status
    finally:
        waiting.kill()
        (folder / "go").touch()
    lines = told.read_text().splitlines()
    end = next(number for number, line in enumerate(lines) if f"{job_id} {last}" in line)
    # A failure announces the last lines of the log.
    announced = [line.strip() for line in lines[end + 1 :]]
    assert bool(announced) == lines[end].endswith("the last lines of its log:") == (ending == "fail")
    assert all(" | " in line for line in announced)
    assert state(system, job_id) == last


def test_ctrl_c_leaves_the_job_running_and_says_so(system: Deployment, tmp_path: Path) -> None:
    folder, out = tmp_path / "job", tmp_path / "out"
    waiting = begin(system, *arguments(folder, "--wait", "--json"), out=out)
    told = out.with_suffix(".err")
    try:
        wait_until(lambda: "RUNNING" in told.read_text(), SECONDS, "a running job")
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(SECONDS) == 130
    finally:
        waiting.kill()
    (job_id,) = re.findall(r"(j\d+) goes on", told.read_text())
    assert out.read_text() == "", "JSON is the jobs as they ended"
    assert state(system, job_id) == "RUNNING"
    (folder / "go").touch()
    wait_until(lambda: state(system, job_id) == "COMPLETED", SECONDS, "its end")


@pytest.mark.parametrize("tail", [0, 5])
def test_a_log_is_followed_across_restarts_of_jobmanager_and_of_the_job(
    system: Deployment, tmp_path: Path, tail: int
) -> None:
    folder, out = tmp_path / "job", tmp_path / "out"
    job_id = submitted(system, folder)
    wait_until(lambda: (folder / "count").exists(), SECONDS, "the first lines")
    following = begin(system, "logs", "-f", job_id, "--tail", str(tail), out=out)
    try:
        wait_until(lambda: len(out.read_text().splitlines()) > 20, SECONDS, "lines")
        kill(system, "job_manager")
        wait_until(lambda: "answers again" in out.with_suffix(".err").read_text(), SECONDS, "the next JobManager")
        count = int((folder / "count").read_text())
        (node,) = job_of(system, job_id).confirmed_nodes
        with called(system) as stubs:
            stubs.scavenger.ReclaimNodes(scavenger_pb2.ReclaimNodesRequest(nodes=[node]), timeout=SECONDS)
        wait_until(lambda: int((folder / "count").read_text()) > count + 200, SECONDS, "lines of the next generation")
        (folder / "go").touch()
        assert following.wait(SECONDS) == 0, out.with_suffix(".err").read_text()
    finally:
        (folder / "go").touch()
        following.kill()
    *lines, last = [line.partition(" | ")[2] for line in out.read_text().splitlines()]
    assert last.endswith("last line without an end")
    # A worker that was killed leaves half a line, which the next one goes on with.
    numbers = [int(number) for line in lines for number in re.findall(r"line (\d+) end", line)]
    expected = list(range(numbers[0], int((folder / "count").read_text()) + 1))
    torn = [number for number in expected if number not in numbers]
    assert numbers == [number for number in expected if number in set(numbers)], "no line twice, and in order"
    assert len(torn) <= 1, "none lost but for the one at which the worker was killed"
    assert numbers[0] == 1 if tail == 0 else numbers[0] > 1


def test_live_explanations(system: Deployment, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    job_id = submitted(system, folder, "--curve", "1:500")
    try:
        wait_until(lambda: state(system, job_id) == "RUNNING", SECONDS, "a running job")
        plan = job_of(system, job_id).plan_generation
        (node,) = job_of(system, job_id).confirmed_nodes
        asked = json_of(system, "explain", job_id)
        assert (asked["job"]["id"], asked["job"]["state"]) == (job_id, "RUNNING")
        (explained,) = asked["explanation"]["jobs"]
        assert (explained["jobId"], explained["sentences"] != []) == (job_id, True)
        assert "has 1 node" in text_of(system, "explain", job_id)
        node_asked = json_of(system, "explain", node)["explanation"]["node"]
        assert (node_asked["name"], node_asked["sentences"] != []) == (node, True)
        assert job_id in text_of(system, "explain", node)
        assert int(json_of(system, "explain", str(plan))["explanation"]["generation"]) == plan
        text = text_of(system, "explain", str(plan))
        assert f"plan {plan}" in text
        assert "one free node more" in text
        unknown = system.command("explain", "n99", timeout=SECONDS)
        assert (unknown.returncode, "n99" in unknown.stderr) == (1, True), unknown.stderr
        assert system.command("explain", "999999", timeout=SECONDS).returncode == 1
    finally:
        (folder / "go").touch()
    wait_until(lambda: state(system, job_id) == "COMPLETED", SECONDS, "its end")


def test_explanations_are_for_viewers_and_refuse_what_makes_no_sense(system: Deployment, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    job_id = submitted(system, folder, "--curve", "1:500", "--name", "secret-plan")
    token = text_of(system, "token", "--user", "bob", "--role", "viewer", "--lifespan", "1h").strip()
    shown = (("authorization", f"Bearer {token}"),)
    channel = open_blocking_channel(load(system.config).peer("allocator"), None)
    try:
        wait_until(lambda: state(system, job_id) == "RUNNING", SECONDS, "a running job")
        stub = allocator_pb2_grpc.AllocatorServiceStub(channel)

        def code_of(metadata: tuple[tuple[str, str], ...] = shown, **asked: Any) -> grpc.StatusCode:
            try:
                stub.ExplainPlan(allocator_pb2.ExplainPlanRequest(**asked), metadata=metadata, timeout=SECONDS)
            except grpc.RpcError as error:
                return error.code()
            return grpc.StatusCode.OK

        found = stub.ExplainPlan(allocator_pb2.ExplainPlanRequest(job_id=job_id), metadata=shown, timeout=SECONDS)
        assert found.explanation.jobs[0].job_id == job_id
        assert str(SCRIPT) not in str(found), "what the job runs is nobody else's business"
        assert code_of(()) is grpc.StatusCode.UNAUTHENTICATED
        assert code_of((("authorization", "Bearer nonsense"),)) is grpc.StatusCode.UNAUTHENTICATED
        for asked in ({"generation": -1}, {"job_id": job_id, "node": "n1"}):
            assert code_of(**asked) is grpc.StatusCode.INVALID_ARGUMENT, asked
        for asked in ({"generation": 2**63 - 1}, {"job_id": "j" * 70_000}, {"node": "\0"}, {"job_id": "../../etc"}):
            assert code_of(**asked) is grpc.StatusCode.NOT_FOUND, str(asked)[:60]
    finally:
        channel.close()
        (folder / "go").touch()
    wait_until(lambda: state(system, job_id) == "COMPLETED", SECONDS, "its end")


@contextmanager
def top(system: Deployment) -> Iterator[Terminal]:
    found = Terminal([sys.executable, "-m", "malletrain.cli.main", "top"], system.folder)
    try:
        wait_until(lambda: "sort:" in found.text(), SECONDS, "the first frame")
        yield found
    finally:
        found.close()


def waits_for_line(terminal: Terminal, pattern: str) -> None:
    try:
        wait_until(lambda: re.search(pattern, terminal.text()), SECONDS, pattern)
    except AssertionError as error:
        raise AssertionError(f"{error}:\n{terminal.text()}") from error


def test_top_in_a_real_terminal(system: Deployment, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with top(system) as terminal:
        wait_until(lambda: "idle nodes: 3" in terminal.text(), SECONDS, "the nodes")
        job_id = submitted(system, first, "--name", "alpha", "--curve", "1:500", "--target-samples", "1000000000")
        other = submitted(system, second, "--name", "omega", "--curve", "1:500")
        waits_for_line(terminal, rf"{job_id} .*RUNNING .*\d\.\d  +\d+d")
        assert terminal.text().index(job_id) < terminal.text().index(other)
        terminal.press("nn")  # by name, the other way round
        wait_until(lambda: terminal.text().index("omega") < terminal.text().index("alpha"), SECONDS, "another order")
        terminal.press("j\x1b[H\r")
        shown = terminal.text
        wait_until(lambda: "Esc back" in shown() and re.search(r"trains on  n\d", shown()), SECONDS, "one job")
        terminal.resize(40, 90)
        terminal.press("\x1b")
        wait_until(lambda: "sort:" in shown() and "Esc back" not in shown(), SECONDS, "the list")
        # Stopped, not killed: one that is killed is back before the screen asks again.
        monitor = system.pids()["monitor"]
        os.kill(monitor, signal.SIGSTOP)
        wait_until(lambda: "Monitor does not answer since" in shown(), SECONDS, "the outage")
        with suppress(ProcessLookupError):
            os.kill(monitor, signal.SIGCONT)
        wait_until(lambda: "Monitor answers again" in shown(), SECONDS, "its end")
        wait_until(lambda: "does not answer since" not in shown(), SECONDS, "no outage any more")
        (first / "go").touch()
        (second / "go").touch()
        wait_until(lambda: "COMPLETED" in shown(), SECONDS, "the end of a job")
        terminal.press("q")
        assert wait_until(lambda: terminal.ended() is not None, SECONDS, "its end")
        assert (terminal.ended(), terminal.is_sane()) == (0, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_top_leaves_the_terminal_as_it_was(system: Deployment, number: signal.Signals) -> None:
    with top(system) as terminal:
        terminal.process.send_signal(number)
        wait_until(lambda: terminal.ended() is not None, SECONDS, "its end")
        assert (terminal.ended(), terminal.is_sane()) == (0, True)


def test_top_needs_a_terminal(system: Deployment) -> None:
    refused = system.command("top", timeout=SECONDS)
    assert (refused.returncode, "expected a terminal" in refused.stderr) == (2, True)
