"""One job of a check: a real supervisor with real workers on this machine, and what is seen of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from malletrain.cli.check.observations import End, Report, Step
from malletrain.common.child_process import ChildProcess
from malletrain.common.environment import JOB_ID
from malletrain.common.job_folder import OBSERVED_FOLDER, SUPERVISOR_FILE
from malletrain.common.processes import ProcessId, find_processes, identify, kill_processes, read_cpu_seconds
from malletrain.job_manager.launching.folder import JobFolder, socket_path
from malletrain.job_manager.launching.starting import ForkedSupervisor, LaunchOrder, SupervisorStarter
from malletrain.job_manager.launching.supervisor_client import SupervisorClient
from malletrain.job_manager.machine.jobs import JobSpec
from malletrain.runtime.errors import MalleTrainError
from malletrain.v1 import monitor_pb2

_MAX_REPORTS = 100_000


class ReportRecorder:
    """Keeps the reports of each job. All calls come from the event loop.

    Attributes:
        commits: When a request to commit was handed out, by job, in seconds since the epoch.
    """

    def __init__(self) -> None:
        self.commits: dict[str, list[float]] = {}
        self._reports: dict[str, list[Report]] = {}
        self._pending: dict[str, list[monitor_pb2.Command]] = {}

    def reports(self, job_id: str) -> list[Report]:
        """What a job has reported so far, in the order of its arrival."""
        return self._reports.get(job_id, [])

    def ask_to_commit(self, job_id: str) -> None:
        """Have a job commit; its next message is answered with that."""
        command = monitor_pb2.Command(id=f"commit-{time.time_ns()}", type=monitor_pb2.COMMAND_TYPE_COMMIT)
        self._pending.setdefault(job_id, []).append(command)

    async def report(
        self, request_iterator: AsyncIterator[monitor_pb2.ReportRequest], context: object
    ) -> AsyncIterator[monitor_pb2.ReportResponse]:
        """A reporter's stream."""
        del context
        async for request in request_iterator:
            newest = self._add_report(request)
            commands = self._pending.pop(request.job_id, [])
            if commands:
                self.commits.setdefault(request.job_id, []).append(time.time())
            yield monitor_pb2.ReportResponse(acknowledged_sequence=newest, commands=commands)

    def _add_report(self, request: monitor_pb2.ReportRequest) -> int:
        batch = request.batch
        known = self._reports.setdefault(request.job_id, [])
        for seconds, samples, position, workers in zip(
            batch.unix_seconds, batch.samples, batch.positions, batch.workers, strict=True
        ):
            if len(known) < _MAX_REPORTS:
                known.append(Report(seconds, samples, None if position < 0 else position, workers))
        return batch.first_sequence + len(batch.samples) - 1 if batch.samples else 0


async def serve(recorder: ReportRecorder) -> tuple[grpc.aio.Server, str]:
    """Serve on a free port of loopback; returns the server and its address."""
    server = grpc.aio.server()
    method = grpc.stream_stream_rpc_method_handler(
        recorder.report, monitor_pb2.ReportRequest.FromString, monitor_pb2.ReportResponse.SerializeToString
    )
    handler = grpc.method_handlers_generic_handler("malletrain.v1.MonitorService", {"Report": method})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"


_POLL_SECONDS = 0.05
_SUPERVISOR_SECONDS = 60.0
_END_SECONDS = 20.0
_MAX_FAILURES = 2
"""Ends of workers on one node after which it is not waited any longer."""
_LOG_BYTES = 1 << 15


class CheckError(MalleTrainError):
    """The check itself can't be made; the message is for people."""


class JobRun:
    """Starts and ends supervisors of one job, one after the other, in one folder."""

    def __init__(
        self, job_id: str, state_dir: Path, spec: JobSpec, starter: SupervisorStarter, recorder: ReportRecorder
    ) -> None:
        """Nothing happens before `start`.

        Args:
            job_id: Identifier that no other job on this machine has.
            starter: Starts supervisors.
        """
        self.id = job_id
        self.folder = JobFolder(state_dir / "jobs" / job_id)
        self._state_dir = state_dir
        self._spec = spec
        self._starter = starter
        self._recorder = recorder
        self._observed = Observed(self.folder.path / OBSERVED_FOLDER)
        self._incarnation = self._sequence = self._failures = 0
        self._process: ChildProcess | None = None
        self._supervisor: ProcessId | None = None
        self._client: SupervisorClient | None = None
        self._watching: asyncio.Task[None] | None = None

    def steps(self, since: float, workers: int | None) -> tuple[Step, ...]:
        """Steps since a moment at a scale; None: at any."""
        steps = self._observed.read()
        return tuple(step for step in steps if step.seconds >= since and workers in (None, step.workers))

    def reports(self, since: float, workers: int | None) -> tuple[Report, ...]:
        """Reports since a moment at a scale; None: at any."""
        reports = self._recorder.reports(self.id)
        return tuple(report for report in reports if report.seconds >= since and workers in (None, report.workers))

    def overwritten(self, since: float) -> tuple[str, ...]:
        """Files with a state that were written over since a moment."""
        self._observed.read()
        return tuple(dict.fromkeys(path for seconds, path in self._observed.overwritten if seconds >= since))

    def saves(self, since: float) -> tuple[tuple[float, str], ...]:
        """When states were saved since a moment, and in which files."""
        self._observed.read()
        return tuple((seconds, path) for seconds, path in self._observed.saves if seconds >= since)

    def evaluated(self, since: float, *, unsaid: bool = False) -> tuple[float, ...]:
        """When evaluations made passes since a moment; on request only those of which the script does not say so."""
        self._observed.read()
        evaluated = self._observed.evaluated
        return tuple(seconds for seconds, said in evaluated if seconds >= since and not (unsaid and said))

    def cpu_seconds(self) -> float:
        """CPU time of the job's processes so far, without their supervisor, which looks at them all the time."""
        supervisor = self._supervisor.pid if self._supervisor is not None else None
        processes = (process.id.pid for process in find_processes(self._is_ours))
        return sum(read_cpu_seconds(pid) or 0.0 for pid in processes if pid != supervisor)

    def log(self) -> str:
        """The end of what the workers have printed, or else their supervisor."""
        logs = sorted(self.folder.logs.glob("n*.log"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in (*logs, self.folder.supervisor_log):
            text = _tail(path)
            if text.strip():
                return text
        return ""

    async def start(self) -> None:
        """Start a supervisor with one worker.

        Raises:
            CheckError: it does not serve.
        """
        self._incarnation += 1
        self._sequence += 1
        self._failures = 0
        order = LaunchOrder(self.id, self._incarnation, "", self._spec, self._sequence, ("n1",))
        started = await self._starter.start(self.folder, order)
        self._process = None if isinstance(started, ForkedSupervisor) else started
        self._supervisor = started.id if isinstance(started, ForkedSupervisor) else identify(started.pid)
        deadline = time.monotonic() + _SUPERVISOR_SECONDS
        while not (self.folder.path / SUPERVISOR_FILE).exists():
            if not self._alive():
                if self.folder.outcome() is not None:
                    return  # it has served and is over
                raise CheckError(f"the supervisor could not be started: {_tail(self.folder.supervisor_log)[-1000:]}")
            if time.monotonic() > deadline:
                raise CheckError(f"the supervisor does not serve after {_SUPERVISOR_SECONDS:.0f} s")
            await asyncio.sleep(_POLL_SECONDS)
        socket = socket_path(self._state_dir, self.id, self._incarnation)
        self._client = SupervisorClient(self.id, self._incarnation, socket, {})
        self._watching = asyncio.create_task(self._watch(self._client))

    async def grow(self) -> None:
        """Command a second worker."""
        self._sequence += 1
        self._failures = 0
        if self._client is not None:
            await self._client.set_hosts(self._sequence, ("n1", "n2"), 1)

    async def until(self, seen: Callable[[], bool], seconds: float) -> End:
        """Wait for something to be seen, for the job's end, or for a time.

        Args:
            seen: Returns whether it has been seen.
            seconds: How long to wait.
        """
        deadline = time.monotonic() + seconds
        while not seen():
            if not self._alive() or self._failures >= _MAX_FAILURES or self.folder.is_done:
                return End.DONE if seen() else End.ENDED
            if time.monotonic() > deadline:
                return End.SILENT
            await asyncio.sleep(_POLL_SECONDS)
        return End.DONE

    async def stop(self, grace_seconds: float) -> tuple[float, bool]:
        """Have all workers save and end; returns the seconds that took, and whether they had to be killed."""
        began = time.monotonic()
        if self._client is not None and self._alive():
            await self._client.stop(grace_seconds, grace_seconds + _END_SECONDS)
        seconds = time.monotonic() - began
        deadline = time.monotonic() + _END_SECONDS
        while self._alive() and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
        await self._disconnect()
        self.kill()
        return seconds, seconds >= grace_seconds

    def kill(self) -> None:
        """End everything at once; nothing of the job is left afterwards. Does not wait for the event loop."""
        if self._supervisor is None:
            return
        self._supervisor.kill()
        if self._process is not None:
            self._process.wait()
        self._process = self._supervisor = None
        deadline = time.monotonic() + _END_SECONDS
        while any(find_processes(self._is_ours)) and time.monotonic() < deadline:
            kill_processes(self._is_ours)
            time.sleep(_POLL_SECONDS)

    async def close(self) -> None:
        """End everything, and disconnect."""
        self.kill()
        await self._disconnect()

    async def _disconnect(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    async def _watch(self, client: SupervisorClient) -> None:
        async for state in client.watch():
            self._failures = max((count for _, count in state.failures), default=0)

    def _alive(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        return self._supervisor is not None and self._supervisor.alive()

    def _is_ours(self, environment: object) -> bool:
        return isinstance(environment, dict) and environment.get(JOB_ID) == self.id


def _tail(path: Path) -> str:
    try:
        return path.read_bytes()[-_LOG_BYTES:].decode(errors="replace")
    except OSError:
        return ""


_MAX_BYTES = 64 << 20


class Observed:
    """What a job's workers did, read as it is written.

    Attributes:
        overwritten: Moments and paths of files with a state that were written over.
        saves: Moments and paths of files that states were saved in.
        evaluated: Moments at which an evaluation made passes, each with whether the script says when it evaluates.
    """

    def __init__(self, folder: Path) -> None:
        """Nothing is read yet; the folder need not exist."""
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._steps: list[Step] = []
        self.overwritten: list[tuple[float, str]] = []
        self.saves: list[tuple[float, str]] = []
        self.evaluated: list[tuple[float, bool]] = []

    def read(self) -> list[Step]:
        """All steps so far, in order of time."""
        known = len(self._steps)
        for path in sorted(self._folder.glob("*.jsonl")):
            for note in self._new_in(path):
                self._add_note(note)
        if len(self._steps) > known:
            self._steps.sort(key=lambda step: step.seconds)
        return self._steps

    def _add_note(self, note: dict[str, Any]) -> None:
        event = note.get("event")
        if event is None:
            self._steps.append(_step(note))
        elif event == "overwritten":
            self.overwritten.append((note["seconds"], note["path"]))
        elif event == "saved":
            self.saves.append((note["seconds"], note["path"]))
        else:
            self.evaluated.append((note["seconds"], note["said"]))

    def _new_in(self, path: Path) -> list[dict[str, Any]]:
        start = self._read.get(path, 0)
        if start >= _MAX_BYTES:
            return []
        with path.open("rb") as file:
            file.seek(start)
            whole = file.read(_MAX_BYTES).rpartition(b"\n")[0]
        if not whole:
            return []
        self._read[path] = start + len(whole) + 1
        notes = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):  # two threads may have written at once
                notes.append(json.loads(line))
        return notes


def _step(note: dict[str, Any]) -> Step:
    """A step as it is noted: by the names of its fields, with lists in place of tuples."""
    known = {field.name: note[field.name] for field in fields(Step) if field.name != "process"}
    tuples = {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
    schedule = {"schedule": tuple(note["schedule"]) if note["schedule"] else None}
    return Step(process=note["pid"], **(known | tuples | schedule))
