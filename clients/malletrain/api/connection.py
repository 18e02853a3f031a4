"""A connection to the services of an installation, and the one that the functions of `malletrain` use."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import grpc

from malletrain.api.errors import as_exception, in_python
from malletrain.api.job import Job, JobList
from malletrain.api.options import JobOptions, array_specs_of, spec_of
from malletrain.caller.credentials import caller_credential
from malletrain.caller.dependencies import meant_by_name, name_identifiers
from malletrain.caller.other_names import identifier_like, states_in_words
from malletrain.caller.reconnecting import across_restarts, job_changes
from malletrain.caller.settings import CallerSettings, caller_settings
from malletrain.caller.stubs import DEADLINE_SECONDS, ServiceStubs, is_unverified
from malletrain.common.backoff import Backoff
from malletrain.model.job_state import JobState
from malletrain.runtime.errors import InvalidInputError, MalleTrainError, NotFoundError, UnavailableError
from malletrain.runtime.paging import all_pages
from malletrain.v1 import access_pb2, job_manager_pb2, monitor_pb2, resources_pb2

JobListener = Callable[["resources_pb2.Job | MalleTrainError"], None]
"""Gets a job whenever it has changed, or why that is no longer known; called in another thread, and must not block."""


class JobWatcher:
    """Follows the jobs that are waited for. Its thread begins with the first of them, and ends with the connection."""

    def __init__(self, stubs: ServiceStubs) -> None:
        self._stubs = stubs
        self._lock = threading.Lock()
        self._waiting: dict[str, list[JobListener]] = {}
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def add(self, job_id: str, listener: JobListener) -> None:
        """Tell of each change of a job from now on. What has been before, the caller asks for afterwards."""
        with self._lock:
            if self._closed.is_set():
                raise UnavailableError("the connection is closed")
            self._waiting.setdefault(job_id, []).append(listener)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="malletrain-jobs", daemon=True)
                self._thread.start()

    def remove(self, job_id: str, listener: JobListener) -> None:
        """Tell no more; nothing happens where that was not added."""
        with self._lock:
            others = [other for other in self._waiting.get(job_id, ()) if other is not listener]
            if others:
                self._waiting[job_id] = others
            else:
                self._waiting.pop(job_id, None)

    @contextmanager
    def watching(self, job_id: str, listener: JobListener) -> Iterator[None]:
        """Tell of each change of a job in the block."""
        self.add(job_id, listener)
        try:
            yield
        finally:
            self.remove(job_id, listener)

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
            # Nothing is said: who waits sees the job's state.
            changes = across_restarts(
                "JobManager", lambda: job_changes(self._stubs, self._awaited), lambda _: None, self._pause
            )
            for changed in changes:
                for job in changed:
                    self._tell_listeners(job)
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

    def _tell_listeners(self, job: resources_pb2.Job) -> None:
        with self._lock:
            listeners = list(self._waiting.get(job.id, ()))
        for listener in listeners:
            listener(job)

    def _fail(self, error: MalleTrainError) -> None:
        with self._lock:
            listeners = [listener for listed in self._waiting.values() for listener in listed]
            self._waiting.clear()
            self._thread = None
        for listener in listeners:
            listener(error)


_PATIENCE_SECONDS = 30.0
"""How long a service that has answered before may be away: for a restart."""
_FIRST_PAUSE_SECONDS = 0.1
_MAX_PAUSE_SECONDS = 2.0
_PASSING = frozenset((grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED))
AnswerT = TypeVar("AnswerT")


class Connection:
    """The services of one installation. May be used by any thread; ends with `close`, or as a context manager.

    Attributes:
        settings: Where the services are.
    """

    def __init__(self, settings: CallerSettings) -> None:
        """Nothing is sent before the first call.

        Args:
            settings: Where the services are.

        Raises:
            InvalidInputError: the file that `MALLETRAIN_TOKEN_FILE` names has no token.
        """
        self.settings = settings
        self._stubs = ServiceStubs(settings, caller_credential(settings))
        self.watcher = JobWatcher(self._stubs)
        self._answered = self._closed = False

    def __repr__(self) -> str:
        return f"<malletrain.Connection {self.settings.state_dir} {self.settings.addresses['job_manager']}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close it. Jobs go on; who waits for one is told. Once more does nothing."""
        self._closed = True
        self.watcher.close()
        self._stubs.close()
        _forget(self)

    @property
    def stubs(self) -> ServiceStubs:
        """Stubs of all services.

        Raises:
            UnavailableError: the connection is closed.
        """
        if self._closed:
            raise UnavailableError("the connection is closed")
        return self._stubs

    def submit(self, command: Sequence[str], **options: Unpack[JobOptions]) -> Job:
        """Submit an elastic training; see `malletrain.submit`."""
        return self.submit_specs([spec_of(command, options)])[0]

    def submit_array(
        self,
        command: Sequence[str],
        parameters: Mapping[str, Sequence[object]],
        at_once: int = 0,
        **options: Unpack[JobOptions],
    ) -> JobList:
        """Submit a job for each combination of parameters, all at once; see `malletrain.submit_array`."""
        specs = array_specs_of(command, parameters, at_once, options)
        return JobList(self, self.submit_specs(specs))

    def submit_specs(self, specs: Iterable[resources_pb2.JobSpec]) -> list[Job]:
        """Submit several jobs at once, all of them or none.

        Args:
            specs: 1 to 1000 specifications.
        """
        specs = list(specs)
        name_identifiers(specs, self._job_named)
        # By its identifier a submission that is sent again, because the answer was lost, is done once only.
        request = job_manager_pb2.SubmitJobsRequest(request_id=uuid.uuid4().hex, specs=specs)
        stored = self.call(self.stubs.job_manager.SubmitJobs, request).jobs
        return [Job(self, message) for message in stored]

    def _job_named(self, field: str, name: str) -> str:
        """The identifier of the caller's newest job of a name, or of its array.

        Raises:
            InvalidInputError: the caller has none.
        """
        request = job_manager_pb2.ListJobsRequest(owner=self.user, name=name)
        pages = all_pages(lambda page, **_: self.call(self.stubs.job_manager.ListJobs, page), request)
        jobs = [job for page in pages for job in page.jobs if job.spec.name == name]
        if not jobs:
            raise InvalidInputError(field, "jobs, their identifiers, or names of the caller's jobs", name)
        return meant_by_name(jobs)[0]

    def job(self, job_id: str) -> Job:
        """One job by its identifier.

        Raises:
            InvalidInputError: it is no text, or not written as identifiers are.
            NotFoundError: there is none.
        """
        if not isinstance(job_id, str) or (identifier_like(job_id) or job_id) != job_id:
            meant = identifier_like(str(job_id)) or "j000001"
            raise InvalidInputError("job_id", f"a text such as '{meant}'", job_id)
        request = job_manager_pb2.GetJobRequest(job_id=job_id)
        return Job(self, self.call(self.stubs.job_manager.GetJob, request).job)

    def jobs(self, state: str | Iterable[str] = (), owner: str = "", mine: bool = False) -> JobList:
        """Jobs, oldest first; see `malletrain.jobs`."""
        if mine and owner:
            raise InvalidInputError("mine", "no owner beside it", owner)
        names = [state] if isinstance(state, str) and state else state or ()
        states = [_state("state", name) for name in names]
        request = job_manager_pb2.ListJobsRequest(states=states, owner=self.user if mine else owner)
        pages = all_pages(lambda page, **_: self.call(self.stubs.job_manager.ListJobs, page), request)
        return JobList(self, [Job(self, message) for page in pages for message in page.jobs])

    @property
    def user(self) -> str:
        """The user whom the services take the caller for."""
        answer = self.call(self.stubs.access.GetIdentity, access_pb2.GetIdentityRequest())
        return str(answer.identity.user)

    def progress_of(self, job_ids: Sequence[str]) -> dict[str, monitor_pb2.Progress]:
        """How far jobs are, by their identifiers; without those that have reported nothing, or if Monitor is away."""
        try:
            answer = self.call(
                self.stubs.monitor.GetProgress, monitor_pb2.GetProgressRequest(job_ids=job_ids), patience=0.0
            )
        except (NotFoundError, UnavailableError):
            return {}
        return {progress.job_id: progress for progress in answer.progress}

    def call(self, method: Callable[..., Any], request: Any, *, patience: float = _PATIENCE_SECONDS) -> Any:
        """Call a service, and once more while it is restarted; only for calls that may be sent twice.

        Args:
            method: Method of a stub.
            patience: How long a service that does not answer is tried, in seconds, if any has answered before.

        Raises:
            MalleTrainError: the call has failed.
        """
        backoff, deadline = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS), time.monotonic() + patience
        while True:
            try:
                answer = method(request, timeout=DEADLINE_SECONDS)
            except grpc.RpcError as error:
                passes = self._answered and error.code() in _PASSING and not is_unverified(error)
                if not passes or time.monotonic() >= deadline:
                    raise as_exception(error) from error
                time.sleep(backoff.fail())
            except ValueError as error:
                if isinstance(error, InvalidInputError):
                    raise
                raise UnavailableError(f"the connection is closed ({error})") from None  # gRPC's, of its channel
            else:
                self._answered = True
                return answer


def _state(field: str, name: object) -> resources_pb2.JobState.ValueType:
    known = [state.value for state in JobState]
    if not isinstance(name, str) or name.upper() not in known:
        raise InvalidInputError(field, states_in_words(str(name), [state.lower() for state in known]), name)
    return resources_pb2.JobState.Value(f"JOB_STATE_{name.upper()}")


_lock = threading.Lock()
_default: Connection | None = None
_default_process = 0


def connect(config: str | Path | None = None, state_dir: str | Path | None = None) -> Connection:
    """Connect to the services of an installation, and have `malletrain.submit` and its like use that.

    Without arguments the services are found as `malletrain jobs` finds them: by `MALLETRAIN_*` variables,
    `malletrain.toml` of the working directory, or at the default addresses. Credentials are found in the same way.

    Args:
        config: The installation's malletrain.toml.
        state_dir: Its state folder.

    Raises:
        InvalidInputError: a setting can't be used; the error names it.
    """
    try:
        settings = caller_settings(
            None if config is None else Path(config), None if state_dir is None else Path(state_dir)
        )
    except InvalidInputError as error:
        raise in_python(error) from None
    connection = Connection(settings)
    make_default(connection)
    return connection


def make_default(connection: Connection | None) -> Connection | None:
    """Have the functions of `malletrain` use a connection; None: one that they open. Returns the one before."""
    global _default, _default_process  # a process has one
    with _lock:
        before = _default if _default_process == os.getpid() else None
        _default, _default_process = connection, os.getpid()
        return before


def default_connection() -> Connection:
    """The connection that the functions of `malletrain` use; opened where there is none, and after a fork."""
    with _lock:
        connection = _default if _default_process == os.getpid() else None
    return connect() if connection is None else connection


def _forget(connection: Connection) -> None:
    global _default
    with _lock:
        if _default is connection:
            _default = None


def submit(command: Sequence[str], **options: Unpack[JobOptions]) -> Job:
    """Submit an elastic training: `malletrain.submit(["python", "train.py"], max_nodes=4, name="resnet")`.

    Args:
        command: Program and arguments.
        **options: As `malletrain.api.options.JobOptions`: those of `malletrain submit`.

    Raises:
        InvalidInputError: an argument is not as expected: `error.field` names it.
        LimitExceededError: the caller has as many jobs as it may have.
        UnavailableError: JobManager does not answer.
    """
    return default_connection().submit(command, **options)


def submit_array(
    command: Sequence[str],
    parameters: Mapping[str, Sequence[object]],
    at_once: int = 0,
    **options: Unpack[JobOptions],
) -> JobList:
    """Submit a job for each combination of parameters, all at once or none.

        jobs = malletrain.submit_array(
            ["python", "train.py", "--lr", "{lr}"], {"lr": [0.1, 0.01], "seed": range(5)}, env={"SEED": "{seed}"}
        )
        jobs.wait()

    Args:
        command: Program and arguments; in them and in `env`, `{lr}` stands for the value of the parameter `lr`.
        parameters: Values of each parameter; at most 1000 combinations.
        at_once: Most of its jobs that take part in plans at the same time; 0: as many as there are places.
        **options: As `malletrain.api.options.JobOptions`.

    Raises:
        InvalidInputError: an argument is not as expected: `error.field` names it.
    """
    return default_connection().submit_array(command, parameters, at_once, **options)


def jobs(state: str | Iterable[str] = (), owner: str = "", mine: bool = False) -> JobList:
    """Jobs, oldest first.

    Args:
        state: Only jobs in this state, or in one of these, e.g. `running`; by default in all.
        owner: Only jobs of this user.
        mine: Only jobs of the caller.

    Raises:
        InvalidInputError: there is no such state, or both `owner` and `mine` are given.
    """
    return default_connection().jobs(state, owner, mine)


def job(job_id: str) -> Job:
    """One job by its identifier.

    Raises:
        NotFoundError: there is none.
    """
    return default_connection().job(job_id)
