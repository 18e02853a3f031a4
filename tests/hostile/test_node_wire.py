"""Strangers at the ports of agents and of their registry: refused clearly, and nobody else's workers are harmed."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import psutil
import pytest

from malletrain.common import environment as env
from malletrain.common.launch_file import AgentAddress
from malletrain.scavenger.acquisition.agent_registry import AgentRegistry
from malletrain.supervisor.workers.agent_links import AgentLink, RemoteWorker, start_message
from malletrain.supervisor.workers.slot import Slot
from malletrain.tls.credentials import peer_options
from malletrain.tls.files import read_certificate_file
from malletrain.v1 import agent_pb2 as pb
from tests.agent.registries import registry_in_thread, registry_process
from tests.agent.running import RunningAgent
from tests.hostile.test_wire import OPENINGS
from tests.support.certificates import certificate, secure_channel
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

CONTROL = "/malletrain.v1.AgentService/ControlWorkers"
REGISTER = "/malletrain.v1.AgentRegistryService/Register"
Code = grpc.StatusCode


@dataclass
class Node:
    """A node with an agent that is registered, and a worker of somebody else on it."""

    folder: Path
    agent: RunningAgent
    registry: AgentRegistry
    registry_address: str
    link: AgentLink
    worker: RemoteWorker

    @property
    def ports(self) -> dict[str, str]:
        """Address by the role of who serves there."""
        return {"agent": self.agent.address, "scavenger": self.registry_address}


def started_worker(link: AgentLink, folder: Path, job: str = "friend") -> RemoteWorker:
    """A worker that runs."""
    slot, own = Slot("n1", 0), {env.JOB_ID: f"{job}-{folder.parent.name}", env.JOB_DIR: str(folder)}
    message = start_message(slot, ["/bin/sleep", "600"], str(folder), own, folder / f"{job}.log", warm=False)
    worker = link.start(slot, message)
    wait_until(lambda: worker.is_warm(), 30, "the worker")
    return worker


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("node")
    with registry_in_thread(folder) as (registry, address):
        agent = RunningAgent("n1", folder, address, 0.5)
        try:
            wait_until(lambda: "n1" in registry.present, 30, "the agent")
            link = AgentLink("n1", AgentAddress(agent.address), certificate(folder, "supervisor"))
            yield Node(folder, agent, registry, address, link, started_worker(link, folder))
            link.close()
        finally:
            agent.close()


@pytest.fixture(autouse=True)
def _unharmed(node: Node) -> Iterator[None]:
    pid = node.worker.pid
    yield
    assert node.agent.process.poll() is None
    assert "n1" in node.registry.present
    assert not node.link.is_lost
    assert node.link.sweep("nobody's job"), "it still does what a supervisor asks for"
    assert node.worker.poll() is None
    assert psutil.pid_exists(pid)


@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS)
def test_whatever_a_stranger_opens_with_others_are_served(node: Node, opening: bytes) -> None:
    with contextlib.ExitStack() as stack:
        for address in node.ports.values():
            host, _, port = address.partition(":")
            connection = stack.enter_context(socket.create_connection((host, int(port)), 5))
            with contextlib.suppress(OSError):  # the other side may close before it has read all
                connection.sendall(opening)
        started_worker(
            AgentLink("n1", AgentAddress(node.agent.address), certificate(node.folder, "supervisor")),
            node.folder,
            "new",
        )


def ended(call: Any) -> tuple[grpc.StatusCode, str]:
    """How a call ends."""
    try:
        for _ in call:
            pass
    except grpc.RpcError:
        pass
    return call.code(), call.details()


METHODS = {"agent": CONTROL, "scavenger": REGISTER}


@pytest.mark.parametrize("server", METHODS)
def test_who_has_no_certificate_of_the_installation_does_not_get_through_the_handshake(
    node: Node, server: str, tmp_path: Path
) -> None:
    own = read_certificate_file(certificate(node.folder, "agent"))
    foreign = read_certificate_file(certificate(tmp_path, "supervisor"))
    credentials = {
        "none": grpc.ssl_channel_credentials(own.authority),
        "foreign": grpc.ssl_channel_credentials(own.authority, foreign.private_key, foreign.certificate),
    }
    for shown in credentials.values():
        with grpc.secure_channel(node.ports[server], shown, peer_options(server)) as channel:
            code, _ = ended(channel.stream_stream(METHODS[server])(iter([b""]), timeout=10))
            assert code is Code.UNAVAILABLE
    with grpc.insecure_channel(node.ports[server]) as channel:
        assert ended(channel.stream_stream(METHODS[server])(iter([b""]), timeout=10))[0] is Code.UNAVAILABLE


@pytest.mark.parametrize(
    ("server", "role"),
    [("agent", "agent"), ("agent", "scavenger"), ("agent", "monitor"), ("scavenger", "supervisor")],
)
def test_who_has_another_role_is_told_so(node: Node, server: str, role: str) -> None:
    with secure_channel(node.ports[server], certificate(node.folder, role), server) as channel:
        code, details = ended(channel.stream_stream(METHODS[server])(iter([b""]), timeout=10))
        assert code is Code.PERMISSION_DENIED
        assert role in details


def start(**changed: Any) -> bytes:
    own = {env.JOB_ID: "hostile", env.JOB_DIR: "/nonexistent"}
    told = {"worker": 1, "command": ["/bin/true"], "folder": "/", "environment": own, "log": "/dev/null"} | changed
    return pb.ControlWorkersRequest(start=pb.StartWorker(**told)).SerializeToString()


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"\xff\xff\xff no message", Code.INVALID_ARGUMENT),
        (b"", Code.INVALID_ARGUMENT),
        (start(worker=0), Code.INVALID_ARGUMENT),
        (start(worker=-(2**63)), Code.INVALID_ARGUMENT),
        (start(command=[]), Code.INVALID_ARGUMENT),
        (start(environment={env.JOB_ID: "j"}), Code.INVALID_ARGUMENT),
        (bytes(5 << 20), Code.RESOURCE_EXHAUSTED),
    ],
    ids=["gibberish", "empty", "worker 0", "worker negative", "no command", "no folder", "too large"],
)
def test_a_supervisor_that_sends_nonsense_is_told_and_loses_its_own_workers_only(
    node: Node, message: bytes, code: grpc.StatusCode
) -> None:
    shown = certificate(node.folder, "supervisor")
    link = AgentLink("n1", AgentAddress(node.agent.address), shown)
    with secure_channel(node.agent.address, shown, "agent") as channel:
        requests: SimpleQueue[bytes] = SimpleQueue()
        requests.put(start(worker=1, command=["/bin/sleep", "600"]))
        call = channel.stream_stream(CONTROL, None, pb.ControlWorkersResponse.FromString)(iter(requests.get, b"end"))
        pid = next(response.started.pid for response in call if response.HasField("started"))
        requests.put(message)
        assert ended(call)[0] is code
        requests.put(b"end")
        wait_until(lambda: not psutil.pid_exists(pid), 10, "the end of the session's worker")
    assert link.sweep("nobody's job")
    link.close()


@pytest.mark.parametrize(
    "changed",
    [
        {"command": ["/nonexistent/program\0"]},
        {"folder": "/nonexistent"},
        {"log": "/nonexistent/folder/log"},
        {"environment": {env.JOB_ID: "j", env.JOB_DIR: "/", env.MONITOR_FOR_NODES: "no address"}},
        {"environment": {env.JOB_ID: "j", env.JOB_DIR: "/", "A=B\0": "x"}},
    ],
    ids=["nul in the command", "no folder", "no log", "no address", "no variable"],
)
def test_a_worker_that_can_not_be_started_is_said_and_the_session_goes_on(node: Node, changed: dict[str, Any]) -> None:
    with secure_channel(node.agent.address, certificate(node.folder, "supervisor"), "agent") as channel:
        sweep = pb.ControlWorkersRequest(sweep=pb.SweepJob(request=7, job_id="none")).SerializeToString()
        heard = threading.Event()

        def requests() -> Iterator[bytes]:
            yield from (start(**changed), sweep)
            heard.wait(60)

        # A worker waits while its job is swept, as at the end of an earlier session: the other answer may come first.
        call = channel.stream_stream(CONTROL, None, pb.ControlWorkersResponse.FromString)(requests())
        responses = {response.WhichOneof("response"): response for _, response in zip(range(2), call, strict=False)}
        heard.set()
        assert list(call) == []
        assert responses.keys() == {"start_failed", "swept"}
        assert responses["start_failed"].start_failed.error


@pytest.mark.parametrize("server", METHODS)
def test_no_other_method_is_served(node: Node, server: str) -> None:
    role = "supervisor" if server == "agent" else "agent"
    with secure_channel(node.ports[server], certificate(node.folder, role), server) as channel:
        for method in ("/malletrain.v1.MonitorService/Report", "/grpc.health.v1.Health/Check", "/x/y"):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(method)(b"", timeout=10)
            assert caught.value.code() is Code.UNIMPLEMENTED


@pytest.fixture
def leaving(tmp_path: Path) -> Iterator[Callable[[str], RunningAgent]]:
    """Makes an agent that reports to an address."""
    made: list[RunningAgent] = []

    def make(head: str) -> RunningAgent:
        made.append(RunningAgent("n1", tmp_path, head, 0.5))
        return made[-1]

    yield make
    for agent in made:
        agent.close()


def test_a_scavenger_and_a_supervisor_that_do_not_read_do_not_keep_an_agent_from_leaving(
    tmp_path: Path, leaving: Callable[[str], RunningAgent]
) -> None:
    with registry_process(tmp_path) as (registry, address):
        agent = leaving(address)
        assert registry.stdout is not None
        assert any("['n1']" in line for line in registry.stdout)
        supervisor = subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, agent.address, str(certificate(tmp_path, "supervisor")), str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert supervisor.stdout is not None
            pid = int(supervisor.stdout.readline())
            for process in (registry, supervisor):
                process.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            agent.process.send_signal(signal.SIGTERM)
            assert agent.process.wait(10) == 0
            assert 0.5 <= time.monotonic() - began < 2, "the grace of its worker, and little more"
            assert not psutil.pid_exists(pid)
        finally:
            supervisor.kill()
            supervisor.wait()


SUPERVISOR = """
import sys, time
from pathlib import Path
from malletrain.common.launch_file import AgentAddress
from malletrain.supervisor.workers.agent_links import AgentLink, start_message
from malletrain.supervisor.workers.slot import Slot
slot, folder = Slot("n1", 0), Path(sys.argv[3])
link = AgentLink("n1", AgentAddress(sys.argv[1]), Path(sys.argv[2]))
own = {"MALLETRAIN_JOB_ID": "job", "MALLETRAIN_JOB_DIR": str(folder)}
worker = link.start(slot, start_message(slot, ["/bin/sleep", "600"], str(folder), own, folder / "log", warm=False))
while not worker.is_warm():
    time.sleep(0.01)
print(worker.pid, flush=True)
time.sleep(600)
"""


def test_a_head_node_that_accepts_and_says_nothing_does_not_keep_an_agent_from_leaving(
    leaving: Callable[[str], RunningAgent],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        agent = leaving(f"127.0.0.1:{silent.getsockname()[1]}")
        connection, _ = silent.accept()
        began = time.monotonic()
        agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(10) == 0
        assert time.monotonic() - began < 2
        connection.close()
