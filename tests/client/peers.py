"""The two processes around a sidecar: a trainer that does what a test says, and a Monitor that remembers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from malletrain.common.processes import read_status
from malletrain.v1 import monitor_pb2

_TRAINER = """
import json, sys
from malletrain.client import *
from malletrain.client import _client
scope = dict(globals())
for line in sys.stdin:
    kind, code = json.loads(line)
    if kind == "do":
        exec(code, scope)
        answer = None
    else:
        answer = eval(code, scope)
    print(json.dumps(answer), flush=True)
"""


class RecordingMonitor:
    """Keeps every record it gets, acknowledges, and hands out commands; can be stopped and started on its port."""

    def __init__(self) -> None:
        self.records: dict[str, dict[int, tuple[float, int, int, int]]] = {}
        self.requests: list[monitor_pb2.ReportRequest] = []
        self.metrics: dict[int, monitor_pb2.MetricValue] = {}
        self.repeats = 0
        self.pending: list[monitor_pb2.Command] = []
        self.acknowledges = self.acknowledges_metrics = True
        self.refuses = False
        self.port = 0
        self._lock = threading.Lock()
        self._server: grpc.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def delivered(self) -> int:
        with self._lock:
            return sum(len(records) for records in self.records.values())

    @property
    def dropped(self) -> int:
        """As the newest message of each reporter says."""
        with self._lock:
            return sum({request.reporter_id: request.dropped_records for request in self.requests}.values())

    def start(self) -> None:
        server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        report = grpc.stream_stream_rpc_method_handler(
            self._report,
            request_deserializer=monitor_pb2.ReportRequest.FromString,
            response_serializer=monitor_pb2.ReportResponse.SerializeToString,
        )
        handlers = grpc.method_handlers_generic_handler("malletrain.v1.MonitorService", {"Report": report})
        server.add_generic_rpc_handlers((handlers,))
        self.port = server.add_insecure_port(f"127.0.0.1:{self.port}")
        server.start()
        self._server = server

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(None).wait()
        self._server = None

    def _report(
        self, request_iterator: Iterator[monitor_pb2.ReportRequest], context: grpc.ServicerContext
    ) -> Iterator[monitor_pb2.ReportResponse]:
        for request in request_iterator:
            if self.refuses and request.batch.samples:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "batch.samples: expected something else")
            newest = self._keep(request)
            commands, self.pending = self.pending, []
            if self.acknowledges:
                yield monitor_pb2.ReportResponse(
                    acknowledged_sequence=newest,
                    commands=commands,
                    acknowledged_metrics=max(self.metrics, default=0) if self.acknowledges_metrics else 0,
                )

    def _keep(self, request: monitor_pb2.ReportRequest) -> int:
        batch = request.batch
        with self._lock:
            self.requests.append(request)
            self.metrics.update((value.number, value) for value in request.metric_values)
            known = self.records.setdefault(request.reporter_id, {})
            rows = zip(batch.unix_seconds, batch.samples, batch.positions, batch.workers, strict=True)
            for sequence, row in enumerate(rows, batch.first_sequence):
                self.repeats += sequence in known
                known[sequence] = row
            return max(known, default=0)


class Trainer:
    """A training process that runs what it is told, line by line."""

    def __init__(self, environ: Mapping[str, str], cwd: Path) -> None:
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("MALLETRAIN", "HOROVOD"))
        }
        self.log = cwd / "trainer.stderr"
        with self.log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _TRAINER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**inherited, **environ},
                cwd=cwd,
                text=True,
                start_new_session=True,
            )

    def do(self, code: str) -> None:
        """Run statements."""
        self._say("do", code)
        self._hear()

    def ask(self, code: str) -> Any:
        """The value of an expression, by way of JSON."""
        self._say("ask", code)
        return self._hear()

    def do_last(self, code: str) -> None:
        """Run statements that end the process."""
        self._say("do", code)
        self.process.wait(10)

    def end(self) -> None:
        """Let it end as a script does."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait(10)

    def kill(self) -> None:
        """End it and what it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def _say(self, kind: str, code: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([kind, code]) + "\n")
        self.process.stdin.flush()

    def _hear(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the trainer has ended: {self.log.read_text()}"
        return json.loads(line)


def is_running(pid: int) -> bool:
    """Whether a process, or a thread of it, is still there; a zombie is not."""
    status = read_status(pid)
    try:
        return status is not None and (not status.ended or len(list(Path(f"/proc/{pid}/task").iterdir())) > 1)
    except (FileNotFoundError, ProcessLookupError):
        return False
