"""Trainers on a node reach a Monitor on loopback of another machine: real Monitor, gate, agent, trainer."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from malletrain.agent.relay import GATE
from malletrain.agent.wire import TOKEN_FILE, Connection, WireError
from malletrain.runtime.channel import open_blocking_channel
from malletrain.v1 import monitor_pb2, monitor_pb2_grpc
from tests.agent.running import agents
from tests.supervisor.running import supervised
from tests.support.waiting import wait_until

SERVE = "import sys; sys.argv[1:] = ['serve', 'monitor']; from malletrain.cli.entry import run; run()"
PROGRAM = """
import os, time
from malletrain.client import report
print(os.environ["MALLETRAIN_MONITOR"], "agent-token" in str(os.environ), flush=True)
for _ in range(3):
    report(5)
    time.sleep(0.05)
time.sleep(60)
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [found.getsockname()[1] for found in sockets]
    for found in sockets:
        found.close()
    return ports


@contextmanager
def monitor(state_dir: Path) -> Iterator[tuple[str, str]]:
    """A Monitor as a process: its address and that of its gate."""
    address, gate = (f"127.0.0.1:{port}" for port in free_ports(2))
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
    with monitor(tmp_path) as (address, gate), open_blocking_channel(address) as channel:
        stub = monitor_pb2_grpc.MonitorServiceStub(channel)
        (tmp_path / "token").symlink_to(tmp_path / TOKEN_FILE)
        with agents(tmp_path, "n1") as running:
            nodes = {"n1": running["n1"].address}
            # Monitor's own address is no use there.
            own = {"MALLETRAIN_MONITOR": "127.0.0.1:9", GATE: gate}
            with supervised(
                tmp_path / "job",
                "n1",
                command=[sys.executable, "-c", PROGRAM],
                backend="command",
                environment=own,
                agents=nodes,
                token_file=tmp_path / TOKEN_FILE,
            ) as job:

                def samples() -> int:
                    request = monitor_pb2.GetProgressRequest(job_ids=[job.job_id])
                    return sum(found.samples for found in stub.GetProgress(request, timeout=5).progress)

                wait_until(lambda: samples() == 15, 30, "15 samples at Monitor")
                said = (job.folder / "logs" / "n1.0.log").read_text().split()
                assert said[0] != "127.0.0.1:9"
                assert said[1] == "False"


def test_the_gate_lets_nobody_through_without_the_token(tmp_path: Path) -> None:
    with monitor(tmp_path) as (_, gate):
        with pytest.raises((WireError, OSError)):
            Connection(gate, b"not the token of this place", "relay")
        host, _, port = gate.partition(":")
        with closing(socket.create_connection((host, int(port)), 5)) as stranger:
            stranger.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            assert b"SETTINGS" not in stranger.recv(1000)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(1000):
                pass
        Connection(gate, (tmp_path / TOKEN_FILE).read_bytes().strip(), "relay").close()
