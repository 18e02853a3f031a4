"""What one caller sends to keep services busy: used by tests, which bound it, and by `benchmarks/floods.py`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

import grpc

from malletrain.runtime.access.credentials import FixedToken
from malletrain.runtime.channel import open_blocking_channel
from malletrain.runtime.peer import Peer
from malletrain.v1 import monitor_pb2, monitor_pb2_grpc, resources_pb2
from tests.hostile.raw_http2 import RawConnection, message_head

MIB = 1 << 20
LARGEST = 16 * MIB
"""What services take as one message."""
CONNECTIONS, CALLS_EACH = 6, 34
SUBMIT = "/malletrain.v1.JobManagerService/SubmitJobs"
ENVIRONMENT_BYTES = 120_000
PER_SUBMISSION = 124
REPORTED_JOB = "j000042"
STREAMS = 4
_WATCHED_AT_ONCE = 49


def hold_back_last_bytes(
    port: int, method: str, token: str = "", connections: int = CONNECTIONS
) -> list[RawConnection]:
    """Make calls on several connections and send all but the last byte of the largest message on each."""
    opened = [RawConnection(port) for _ in range(connections)]
    body = message_head(LARGEST) + bytes(LARGEST - 1)

    def attack(connection: RawConnection) -> None:
        for stream in [connection.call(method, token) for _ in range(CALLS_EACH)]:
            connection.send(stream, body, timeout=0.2)

    _at_once([lambda connection=connection: attack(connection) for connection in opened])
    return opened


def watched(connection: RawConnection) -> int:
    """Begin to watch the health of a service."""
    stream = connection.call("/grpc.health.v1.Health/Watch")
    connection.send(stream, message_head(0))
    connection.end(stream)
    return stream


def watch_health(port: int, connections: int = 17, calls: int = 245) -> list[RawConnection]:
    """Watch the health of a service so often on each of several connections.

    Raises:
        AssertionError: calls are not answered.
    """
    opened = []
    for _ in range(connections):
        connection = RawConnection(port)
        opened.append(connection)
        for _ in range(calls // _WATCHED_AT_ONCE):
            # Some at a time: gRPC refuses some of a thousand calls that wait to be looked at.
            assert connection.wait_answered([watched(connection) for _ in range(_WATCHED_AT_ONCE)])
    return opened


def spec(name: str, **more: object) -> resources_pb2.JobSpec:
    """A job that never starts: it needs more nodes than there are, or may."""
    return resources_pb2.JobSpec(
        name=name,
        command=["sleep", "1000"],
        working_directory="/",
        min_nodes=1,
        max_nodes=1_000_000,
        backend=resources_pb2.LAUNCHER_BACKEND_COMMAND,
        **more,  # type: ignore[arg-type]
    )


def large(name: str) -> resources_pb2.JobSpec:
    """One with a large environment."""
    return spec(name, environment={"X": "x" * ENVIRONMENT_BYTES})


def report(first: int, records: int) -> monitor_pb2.ReportRequest:
    """Records of a training that has made great progress."""
    times = [1_000_000.0 + first + index for index in range(records)]
    batch = monitor_pb2.ProgressBatch(
        first_sequence=first,
        unix_seconds=times,
        samples=[2**40] * records,
        positions=[2**59] * records,
        workers=[2**20] * records,
        phase_seconds=times,
    )
    return monitor_pb2.ReportRequest(job_id=REPORTED_JOB, reporter_id="mallory", slots_per_node=1, batch=batch)


def send_reports(monitor: Peer, token: str, records: int, messages: int) -> threading.Thread:
    """Send reports on four streams as fast as they are taken; returns what ends when all are sent or refused."""
    body = report(1, records)

    def attack() -> None:
        with open_blocking_channel(monitor, FixedToken(token)) as channel, contextlib.suppress(grpc.RpcError):
            stub = monitor_pb2_grpc.MonitorServiceStub(channel)
            for _ in stub.Report(iter([body] * messages), timeout=40):
                pass

    sending = threading.Thread(target=lambda: _at_once([attack] * STREAMS))
    sending.start()
    return sending


def _at_once(attacks: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=attack) for attack in attacks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
