"""Trainers on a node reach a Monitor on loopback of another machine: real Monitor, gate, agent, trainer."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from malletrain.cli.credentials import owner_credential
from malletrain.common.agent_protocol import AgentConnection, encode
from malletrain.common.environment import MONITOR_GATE
from malletrain.common.token_file import TOKEN_FILE
from malletrain.job_manager.launching.job_tokens import JobTokens
from malletrain.runtime.access.installation import open_installation
from malletrain.runtime.channel import open_blocking_channel
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Settings
from malletrain.v1 import monitor_pb2, monitor_pb2_grpc
from tests.agent.running import agents
from tests.supervisor.running import supervised
from tests.support.ports import free_port
from tests.support.waiting import wait_until

SERVE = "import sys; sys.argv[1:] = ['serve', 'monitor']; from malletrain.cli.entry import run; run()"
PROGRAM = """
import json, os, time
from malletrain.client import report
print(json.dumps(dict(os.environ)), flush=True)
for _ in range(3):
    report(5)
    time.sleep(0.05)
time.sleep(60)
"""


HTTP_2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
SETTINGS_FRAME = 4
"""What each side of HTTP/2 begins with."""


@contextmanager
def monitor(state_dir: Path) -> Iterator[tuple[str, str]]:
    """A Monitor as a process: its address and that of its gate."""
    address, gate = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    environment = {
        **os.environ,
        "MALLETRAIN_STATE_DIR": str(state_dir),
        "MALLETRAIN_ADDRESSES__MONITOR": address,
        "MALLETRAIN_ADDRESSES__MONITOR_GATE": gate,
    }
    with (state_dir / "monitor.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", SERVE], env=environment, stdout=log, stderr=log)
    try:
        wait_until(lambda: b'"gate"' in (state_dir / "monitor.log").read_bytes(), 30, "the gate")
        yield address, gate
    finally:
        process.kill()
        process.wait()


def test_a_trainer_on_a_node_reports_through_its_agent(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path)
    with monitor(tmp_path) as (address, gate), open_blocking_channel(address, owner_credential(settings)) as channel:
        stub = monitor_pb2_grpc.MonitorServiceStub(channel)
        (tmp_path / "token").symlink_to(tmp_path / TOKEN_FILE)
        with agents(tmp_path, "n1") as running:
            nodes = {"n1": running["n1"].address}
            # Monitor's own address is no use there.
            own = {"MALLETRAIN_MONITOR": "127.0.0.1:9", MONITOR_GATE: gate}
            with supervised(
                tmp_path / "job",
                "n1",
                command=[sys.executable, "-c", PROGRAM],
                backend="command",
                environment=own,
                agents=nodes,
                token_file=tmp_path / TOKEN_FILE,
            ) as job:
                # As JobManager does; the sidecar reads it when it connects again.
                JobTokens(open_installation(settings, SystemClock()).tokens, 3600.0).write(job.job_id, job.folder)

                def samples() -> int:
                    request = monitor_pb2.GetProgressRequest(job_ids=[job.job_id])
                    return sum(found.samples for found in stub.GetProgress(request, timeout=5).progress)

                wait_until(lambda: samples() == 15, 30, "15 samples at Monitor")
                said = (job.folder / "logs" / "n1.0.log").read_text()
                assert json.loads(said.splitlines()[0])["MALLETRAIN_MONITOR"] != "127.0.0.1:9"
                assert (tmp_path / TOKEN_FILE).read_text().strip() not in said


def test_the_gate_lets_nobody_through_without_the_token(tmp_path: Path) -> None:
    with monitor(tmp_path) as (_, gate):
        assert answers(gate, HTTP_2) == b""
        # One that does not ask the gate for its own proof, and has none.
        hello, wrong = encode({"role": "relay", "challenge": "0"}), encode({"proof": "0" * 64})
        refusal = answers(gate, hello + wrong + HTTP_2)
        assert refusal.count(b"\n") == 1, "the gate's own proof, and nothing of Monitor's"
        assert set(json.loads(refusal)) == {"proof", "challenge"}
        friend = AgentConnection(gate, (tmp_path / TOKEN_FILE).read_bytes().strip(), "relay")
        friend._socket.sendall(HTTP_2)
        assert friend._stream.read(9)[3] == SETTINGS_FRAME
        friend.close()


def answers(address: str, message: bytes) -> bytes:
    """All that comes until the other side closes."""
    host, _, port = address.partition(":")
    with closing(socket.create_connection((host, int(port)), 5)) as stranger:
        stranger.sendall(message)
        found = b""
        with contextlib.suppress(ConnectionResetError):  # it did not read all of it
            while piece := stranger.recv(1000):
                found += piece
    return found
