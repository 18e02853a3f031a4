"""One stream of JobManager for all jobs that somebody in this process waits for, over restarts of JobManager."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc

from malletrain.api.errors import as_exception
from malletrain.caller.following import job_changes
from malletrain.caller.reconnecting import across_restarts
from malletrain.caller.stubs import ServiceStubs
from malletrain.runtime.errors import MalleTrainError, UnavailableError
from malletrain.v1 import resources_pb2

Told = Callable[["resources_pb2.Job | MalleTrainError"], None]
"""Gets a job whenever it has changed, or why that is no longer known; called in another thread, and must not block."""


class JobWatcher:
    """Follows the jobs that are waited for. Its thread begins with the first of them, and ends with the connection."""

    def __init__(self, stubs: ServiceStubs) -> None:
        self._stubs = stubs
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Told]] = {}
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def add(self, job_id: str, told: Told) -> None:
        """Tell of each change of a job from now on. What has been before, the caller asks for afterwards."""
        with self._lock:
            if self._closed.is_set():
                raise UnavailableError("the connection is closed")
            self._waiting.setdefault(job_id, []).append(told)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="malletrain-jobs", daemon=True)
                self._thread.start()

    def remove(self, job_id: str, told: Told) -> None:
        """Tell no more; nothing happens where that was not added."""
        with self._lock:
            others = [other for other in self._waiting.get(job_id, ()) if other is not told]
            if others:
                self._waiting[job_id] = others
            else:
                self._waiting.pop(job_id, None)

    @contextmanager
    def watching(self, job_id: str, told: Told) -> Iterator[None]:
        """Tell of each change of a job in the block."""
        self.add(job_id, told)
        try:
            yield
        finally:
            self.remove(job_id, told)

    def close(self) -> None:
        """Tell all who wait that the connection is closed. The stream ends with its channel."""
        with self._lock:
            self._closed.set()
        self._fail(UnavailableError("the connection was closed"))

    def _awaited(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._waiting)

    def _run(self) -> None:
        try:
            changes = across_restarts(
                "JobManager", lambda: job_changes(self._stubs, self._awaited), _say_nothing, self._pause
            )
            for changed in changes:
                for job in changed:
                    self._tell(job)
                if self._closed.is_set():
                    return
        except grpc.RpcError as error:
            self._fail(as_exception(error))
        except MalleTrainError as error:
            self._fail(error)
        except ValueError as error:  # gRPC's, of a channel that is closed
            self._fail(UnavailableError(f"the connection was closed ({error})"))

    def _pause(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise UnavailableError("the connection was closed")

    def _tell(self, job: resources_pb2.Job) -> None:
        with self._lock:
            found = list(self._waiting.get(job.id, ()))
        for told in found:
            told(job)

    def _fail(self, error: MalleTrainError) -> None:
        with self._lock:
            found = [told for listed in self._waiting.values() for told in listed]
            self._waiting.clear()
            self._thread = None
        for told in found:
            told(error)


def _say_nothing(text: str) -> None:
    del text  # who waits sees the job's state
