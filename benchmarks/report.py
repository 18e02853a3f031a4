"""What one call of `malletrain.client.report` costs the training loop.

    python benchmarks/report.py [--json] [--calls N]

Every situation runs in a process of its own. Figures are nanoseconds per call, less the median cost of the timer, which
is measured in the same process and shown. "Hot" calls follow each other in bursts of 1000. A "cold" call follows 5 ms
of other work that replaces the content of the caches, as a training does; even an empty function then takes a
microsecond or more.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

from malletrain.client.session import Client
from malletrain.common import environment as env
from malletrain.v1 import monitor_pb2

BURST = 1_000
PAUSE_SECONDS = 0.02
STEP_SECONDS = 0.005
COLD_CALLS = 1_000
WORKING_SET = bytearray(4 << 20)
WARM_UP_CALLS = 5_000
TARGET_MEDIAN_NS, TARGET_P99_NS = 1_000, 10_000

Call = Callable[[int], object]


def time_calls(call: Call, calls: int, burst: int, rest: Callable[[], None]) -> list[int]:
    """Nanoseconds of each call; the loop does something else before every burst."""
    clock = time.perf_counter_ns
    spent = [0] * calls
    for first in range(0, calls, burst):
        rest()
        for i in range(first, min(first + burst, calls)):
            start = clock()
            call(32)
            spent[i] = clock() - start
    return spent


def pause() -> None:
    time.sleep(PAUSE_SECONDS)


def train() -> None:
    """Stand-in for a training step: 5 ms of copying."""
    end = time.perf_counter() + STEP_SECONDS
    while time.perf_counter() < end:
        bytes(WORKING_SET)


def timer_cost(calls: int = 100_000) -> int:
    """Median of what `time_calls` measures around nothing, in nanoseconds."""
    clock = time.perf_counter_ns
    spent = [0] * calls
    for i in range(calls):
        start = clock()
        spent[i] = clock() - start
    return sorted(spent)[calls // 2]


def hot(call: Call, calls: int) -> dict[str, float]:
    time_calls(call, WARM_UP_CALLS, BURST, pause)
    return summary(timer_cost(), time_calls(call, calls, BURST, pause))


def cold(call: Call) -> dict[str, float]:
    return summary(timer_cost(), time_calls(call, COLD_CALLS, 1, train))


def summary(timer: int, measured: list[int]) -> dict[str, float]:
    spent = sorted(value - timer for value in measured)
    calls = len(spent)
    return {
        "calls": calls,
        "median_ns": spent[calls // 2],
        "p99_ns": spent[calls * 99 // 100],
        "p999_ns": spent[calls * 999 // 1000],
        "max_ns": spent[-1],
        "timer_ns": timer,
    }


def reporting_client(monitor: str, directory: str) -> tuple[Client, float]:
    """A client after its first report, and what that one took in seconds."""
    environ = {env.JOB_ID: "benchmark", env.JOB_DIR: directory, env.MONITOR: monitor}
    client = Client(environ)
    start = time.perf_counter()
    client.report(32)
    return client, time.perf_counter() - start


def outside(calls: int, monitor: str, directory: str) -> dict[str, float]:
    del monitor, directory
    return hot(Client({}).report, calls)


def reporting(calls: int, monitor: str, directory: str) -> dict[str, float]:
    client, first = reporting_client(monitor, directory)
    time.sleep(1.0)
    return {**hot(client.report, calls), "first_call_ms": first * 1e3}


def logging(calls: int, monitor: str, directory: str) -> dict[str, float]:
    client, _ = reporting_client(monitor, directory)
    time.sleep(1.0)
    values = {"loss": 0.5}
    return hot(lambda _: client.log_metrics(values), calls)


def full(calls: int, monitor: str, directory: str) -> dict[str, float]:
    client, _ = reporting_client(monitor, directory)
    time.sleep(1.0)
    assert client.sidecar_pid is not None
    os.kill(client.sidecar_pid, signal.SIGSTOP)
    try:
        for _ in range(10_000):
            client.report(32)
        return hot(client.report, calls)
    finally:
        os.kill(client.sidecar_pid, signal.SIGKILL)


def cold_reporting(calls: int, monitor: str, directory: str) -> dict[str, float]:
    del calls
    client, _ = reporting_client(monitor, directory)
    time.sleep(1.0)
    return cold(client.report)


def cold_nothing(calls: int, monitor: str, directory: str) -> dict[str, float]:
    del calls, monitor, directory
    return cold(nothing)


def nothing(samples: int) -> None:
    del samples


@contextmanager
def plain_pipe() -> Iterator[Call]:
    """A plain alternative: a packed record, written to a non-blocking pipe that another process empties."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as reader:
        assert reader.stdin is not None
        fd = reader.stdin.fileno()
        os.set_blocking(fd, False)
        pack, write, now = struct.Struct("dqqi").pack, os.write, time.time
        yield lambda samples: write(fd, pack(now(), samples, -1, 1))


@contextmanager
def plain_socket() -> Iterator[Call]:
    """Another plain alternative: the same over a socket."""
    ours, theirs = socket.socketpair()
    with theirs, subprocess.Popen(["cat"], stdin=theirs.fileno(), stdout=subprocess.DEVNULL), ours:
        pack, send, now = struct.Struct("dqqi").pack, ours.send, time.time
        yield lambda samples: send(pack(now(), samples, -1, 1))


def pipe(calls: int, monitor: str, directory: str) -> dict[str, float]:
    del monitor, directory
    with plain_pipe() as call:
        return hot(call, calls)


def cold_pipe(calls: int, monitor: str, directory: str) -> dict[str, float]:
    del calls, monitor, directory
    with plain_pipe() as call:
        return cold(call)


def stream(calls: int, monitor: str, directory: str) -> dict[str, float]:
    del monitor, directory
    with plain_socket() as call:
        return hot(call, calls)


SITUATIONS: dict[str, tuple[str, Callable[[int, str, str], dict[str, float]]]] = {
    "outside": ("hot: report, outside MalleTrain", outside),
    "up": ("hot: report, Monitor up", reporting),
    "down": ("hot: report, Monitor down", reporting),
    "full": ("hot: report, ring full, sidecar stopped", full),
    "logging": ("hot: log_metrics of one value, Monitor up", logging),
    "pipe": ("hot: plain os.write to a pipe", pipe),
    "socket": ("hot: plain send on a socket", stream),
    "cold_nothing": ("cold: an empty function", cold_nothing),
    "cold": ("cold: report, Monitor up", cold_reporting),
    "cold_pipe": ("cold: plain os.write to a pipe", cold_pipe),
}


def answer(requests: Iterator[monitor_pb2.ReportRequest], context: object) -> Iterator[monitor_pb2.ReportResponse]:
    """A Monitor that acknowledges and forgets."""
    del context
    for request in requests:
        newest = request.batch.first_sequence + len(request.batch.samples) - 1
        yield monitor_pb2.ReportResponse(acknowledged_sequence=newest)


def serve() -> None:
    server = grpc.server(ThreadPoolExecutor(4))
    handler = grpc.stream_stream_rpc_method_handler(
        answer,
        request_deserializer=monitor_pb2.ReportRequest.FromString,
        response_serializer=monitor_pb2.ReportResponse.SerializeToString,
    )
    handlers = grpc.method_handlers_generic_handler("malletrain.v1.MonitorService", {"Report": handler})
    server.add_generic_rpc_handlers((handlers,))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    sys.stdin.read()
    server.stop(None)


def run_all(calls: int) -> dict[str, dict[str, float]]:
    this = [sys.executable, __file__]
    results = {}
    with subprocess.Popen([*this, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = f"127.0.0.1:{server.stdout.readline().strip()}"
        for name in SITUATIONS:
            monitor = "127.0.0.1:1" if name == "down" else address
            command = [*this, "--situation", name, "--monitor", monitor, "--calls", str(calls)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            results[name] = json.loads(done.stdout)
    return results


def show(results: dict[str, dict[str, float]]) -> None:
    print(f"{'ns per call':42}{'calls':>8}{'median':>9}{'p99':>9}{'p99.9':>9}{'timer':>7}")
    for name, row in results.items():
        columns = f"{row['calls']:>8}{row['median_ns']:>9}{row['p99_ns']:>9}{row['p999_ns']:>9}{row['timer_ns']:>7}"
        print(f"{SITUATIONS[name][0]:42}{columns}")
    print(f"first report, which starts the sidecar: {results['up']['first_call_ms']:.1f} ms, once")
    print(f"load average of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"targets (hot): median {TARGET_MEDIAN_NS}, p99 {TARGET_P99_NS}; the timer's median is taken off")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--calls", type=int, default=100_000, help="calls per situation (default 100000)")
    parser.add_argument("--situation", choices=SITUATIONS, help=argparse.SUPPRESS)
    parser.add_argument("--monitor", default="", help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
    elif options.situation:
        with tempfile.TemporaryDirectory() as directory:
            print(json.dumps(SITUATIONS[options.situation][1](options.calls, options.monitor, directory)))
    elif options.json:
        print(json.dumps(run_all(options.calls), indent=2))
    else:
        show(run_all(options.calls))


if __name__ == "__main__":
    main()
