"""Functions as jobs: an executor of `concurrent.futures`, with what users of submitit expect."""

from __future__ import annotations

import asyncio
import concurrent.futures
import secrets
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar, Unpack

from malletrain.api.call_files import CallResult, FunctionCall, cloudpickle, read_result, write_call
from malletrain.api.connection import Connection, default_connection
from malletrain.api.errors import JobFailedError
from malletrain.api.job import Job
from malletrain.api.options import JobOptions, spec_of, with_names
from malletrain.caller.option_values import NAMES, checked_options, unknown_option
from malletrain.common.trusted_files import reason_for_distrust
from malletrain.model.job_state import JobState
from malletrain.runtime.errors import InvalidInputError, MalleTrainError
from malletrain.runtime.messages import job_state_of
from malletrain.v1 import resources_pb2

ArgumentsT = ParamSpec("ArgumentsT")
ValueT = TypeVar("ValueT")
ItemT = TypeVar("ItemT")

_MAX_SUBMITTED = 1000
"""How many jobs one submission has at most."""
_RESULT_SECONDS = 10.0
"""How long the file of a result may take until it is seen here, on a shared disk."""
_LOOK_SECONDS = 0.2
_OWN = ("timeout_min", "max_running")
_AS_IN_SUBMITIT = ("nodes", "tasks_per_node", "gpus_per_node", "cpus_per_task", "mem_gb", "slurm_array_parallelism")


class FunctionTracebackError(Exception):
    """The traceback of a function in its job, as the cause of what it has raised."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(text)

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class FunctionJob(Future[ValueT], Generic[ValueT]):
    """A call that is a job: a future, which knows its job.

    `result()` returns what the function returned, or raises what it raised, with the traceback of the job as its cause.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self._job: Job | None = None
        self._telling = threading.Lock()
        self._has_told = False

    def __repr__(self) -> str:
        return f"<malletrain.FunctionJob {self._job.id if self._job is not None else 'not submitted yet'}>"

    @property
    def job(self) -> Job:
        """Its job.

        Raises:
            MalleTrainError: it is not submitted yet: within `batch()`, or because of `max_running`.
        """
        if self._job is None:
            raise MalleTrainError("this call is not submitted yet")
        return self._job

    @property
    def job_id(self) -> str:
        """Identifier of its job."""
        return self.job.id

    @property
    def state(self) -> JobState:
        """State of its job."""
        return JobState.QUEUED if self._job is None else self._job.state

    def running(self) -> bool:
        """Whether it has nodes now."""
        return not self.done() and self.state in (JobState.STARTING, JobState.RUNNING, JobState.RESCALING)

    def stdout(self) -> str:
        """What it has written so far, to standard output and standard error, without the names of nodes."""
        return "".join(line.partition(" | ")[2] + "\n" for line in self.job.logs())

    def stderr(self) -> str:
        """The same: a job has one log."""
        return self.stdout()

    def results(self, timeout: float | None = None) -> list[ValueT]:
        """A list of the one result: of several ranks it is that of rank 0."""
        return [self.result(timeout)]

    async def async_result(self) -> ValueT:
        """As `result`, for an event loop."""
        return await asyncio.wrap_future(self)

    def cancel(self) -> bool:
        """End its job; returns whether it had not ended yet."""
        if self.done():
            return self.cancelled()
        if self._job is not None and job_state_of(self._job.cancel()._message.state) in (
            JobState.COMPLETED,
            JobState.FAILED,
        ):
            return False
        return self._give_up()

    def _give_up(self) -> bool:
        if not super().cancel():
            return False
        with self._telling:
            if not self._has_told:  # a second time would be an error of its own, in the log
                self._has_told = True
                self.set_running_or_notify_cancel()  # wakes those who wait for several
        return True

    def _take_result(self, result: CallResult | None, ended: resources_pb2.Job) -> None:
        """Take in how its job ended."""
        with suppress(InvalidStateError):  # it may be cancelled at any moment
            if result is None:
                self.set_exception(JobFailedError(ended.id, job_state_of(ended.state), ended.reason))
            elif result.error is None:
                self.set_result(result.value)
            else:
                result.error.__cause__ = FunctionTracebackError(result.traceback)
                self.set_exception(result.error)

    def _fail(self, error: Exception) -> None:
        with suppress(InvalidStateError):
            self.set_exception(error)


PreparedCall: TypeAlias = "tuple[FunctionJob[Any], resources_pb2.JobSpec]"
"""A call that is not submitted yet."""


class Executor(concurrent.futures.Executor):
    """Runs functions as jobs on idle nodes.

        executor = malletrain.Executor(max_nodes=1)
        future = executor.submit(train, lr=0.1)
        print(future.job_id, future.result())

    Each call is one job: rank 0 of an elastic one gives the result. A call that raises is not repeated; one that loses
    its nodes begins anew, unless the function goes on from a checkpoint. Functions, arguments and results are pickled
    with cloudpickle into files of `folder`, which jobs have to see under the same path, and run as the same user.
    """

    def __init__(
        self,
        folder: str | Path = "malletrain-functions",
        *,
        connection: Connection | None = None,
        python: str | None = None,
        max_running: int = 0,
        **options: Unpack[JobOptions],
    ) -> None:
        """
        Args:
            folder: Folder for calls and results, on a disk that nodes see, too; made if there is none. A part with `%j`
                is left out.
            connection: The services; None: those of `malletrain.connect`, or of the default installation.
            python: Interpreter of the jobs, which needs `malletrain[functions]`; None: that of this process.
            max_running: Most jobs that are submitted at the same time, 0: no limit; more are by this process, as others
                end.
            **options: As `JobOptions`; by default the backend is `command`, and a job is not restarted after a failure.

        Raises:
            InvalidInputError: an option is not as expected, or others can write the folder.
            ImportError: cloudpickle is not installed.
        """
        cloudpickle()
        self._connection = default_connection() if connection is None else connection
        self._python = python or sys.executable
        self._options: dict[str, Any] = {"backend": "command", "max_restarts": 0}
        self._timeout = 0.0
        self._max_running = 0
        self._folder = _own_folder(Path(*(part for part in Path(folder).parts if "%j" not in part)))
        self._lock = threading.RLock()
        self._batch: list[PreparedCall] | None = None
        self._waiting: deque[PreparedCall] = deque()
        self._submitted: set[FunctionJob[Any]] = set()
        self._shut = False
        # Reads results and submits what waits, so that neither holds up the stream of changes.
        self._helper = ThreadPoolExecutor(1, thread_name_prefix="malletrain-results")
        self.update_parameters(max_running=max_running, **options)

    @property
    def parameters(self) -> dict[str, Any]:
        """Options that later calls are submitted with, by their names in `JobOptions`; a copy."""
        return dict(self._options)

    def update_parameters(self, **options: Any) -> None:
        """Change options of later calls.

        Args:
            **options: As `JobOptions`, beside `timeout_min` (longest run in minutes) and `max_running`. Of submitit's:
                `nodes`, `tasks_per_node`, `gpus_per_node`, `cpus_per_task`, `mem_gb` and `slurm_array_parallelism`;
                others that begin with `slurm_` are ignored with a warning.

        Raises:
            InvalidInputError: one is not known, or not as expected; nothing is changed then.
        """
        with self._lock:
            if self._batch is not None:
                raise MalleTrainError("options can't be changed within batch()")
            own, job_options = self._own_options(options)
            job_options = with_names(job_options)
            checked_options(job_options)
            self._options |= job_options
            self._timeout = own.get("timeout_min", self._timeout / 60) * 60
            self._max_running = int(own.get("max_running", self._max_running))

    def submit(
        self, fn: Callable[ArgumentsT, ValueT], /, *args: ArgumentsT.args, **kwargs: ArgumentsT.kwargs
    ) -> FunctionJob[ValueT]:
        """Submit a call as a job.

        Raises:
            CallFileError: the function or an argument can't be pickled.
            InvalidInputError: an option is not as expected.
            UnavailableError: JobManager does not answer.
        """
        with self._lock:
            prepared = self._prepare(fn, args, kwargs)
            self._hand_in([prepared])
            return prepared[0]

    def map_array(self, fn: Callable[..., ValueT], *iterables: Iterable[Any]) -> list[FunctionJob[ValueT]]:
        """Submit a call for each item of some iterables, in parallel, all at once."""
        with self._lock:
            prepared = [self._prepare(fn, items, {}) for items in zip(*iterables, strict=False)]
            self._hand_in(prepared)
        return [future for future, _ in prepared]

    def map(
        self, fn: Callable[..., ValueT], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[ValueT]:
        """As `map_array`, for the results, in the order of the items.

        Args:
            fn: The function.
            *iterables: Its arguments.
            timeout: Longest wait for all results in seconds; None: for ever.
            chunksize: Without effect: each call is one job.
        """
        del chunksize
        deadline = None if timeout is None else time.monotonic() + timeout
        futures = self.map_array(fn, *iterables)

        def results() -> Iterator[ValueT]:
            try:
                for future in futures:
                    yield future.result(None if deadline is None else max(0.0, deadline - time.monotonic()))
            finally:
                for future in futures:
                    future.cancel()

        return results()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Submit the calls of the block all at once, at its end; none of them if the block raises."""
        with self._lock:
            if self._batch is not None:
                raise MalleTrainError("expected one batch() at a time")
            self._batch = []
        try:
            yield
        except BaseException:
            for future, _ in self._end_batch():
                future._give_up()
            raise
        self._submit_all(self._end_batch())

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls.

        Args:
            wait: Wait until all have ended.
            cancel_futures: End those that have not.
        """
        with self._lock:
            self._shut = True
            waiting, futures = list(self._waiting), [*self._submitted, *(future for future, _ in self._waiting)]
            if cancel_futures:
                self._waiting.clear()
        if cancel_futures:
            for future, _ in waiting:
                future._give_up()
            for future in futures:
                future.cancel()
        if wait:
            concurrent.futures.wait(futures)
            self._helper.shutdown(wait=False)

    def _own_options(self, options: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
        """What is the executor's own, and what are options of jobs."""
        own: dict[str, float] = {}
        job_options: dict[str, Any] = {}
        for name, value in options.items():
            match name:
                case "timeout_min":
                    own["timeout_min"] = _positive(name, value)
                case "max_running" | "slurm_array_parallelism":
                    own["max_running"] = _positive(name, value, zero=True)
                case "nodes":
                    job_options |= {"min_nodes": value, "max_nodes": value}
                case "tasks_per_node":
                    job_options["slots"] = value
                case "gpus_per_node":
                    job_options["gpus"] = value or None
                case "cpus_per_task":
                    job_options["cores"] = value
                case "mem_gb":
                    job_options["memory"] = f"{_positive(name, value):.6f}G"
                case _ if name in NAMES:
                    job_options[name] = value
                case _ if name.startswith("slurm_"):
                    warnings.warn(f"{name} is ignored; pool= names a partition of idle nodes", stacklevel=4)
                case _:
                    raise unknown_option(name, (*NAMES, *_OWN, *_AS_IN_SUBMITIT))
        return own, job_options

    def _prepare(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> PreparedCall:
        if self._shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if not callable(function):
            raise InvalidInputError("fn", "a function, and its arguments after it", function)
        name = str(self._options.get("name") or getattr(function, "__name__", type(function).__name__))
        folder = self._folder / secrets.token_hex(8)
        folder.mkdir(mode=0o700)
        write_call(folder, FunctionCall(function, arguments, keywords, self._timeout))
        command = [self._python, "-m", "malletrain.api.run_call", str(folder)]
        spec = spec_of(command, self._options | {"name": _printable(name)})
        spec.launch_note = ""  # of a script, which this is not
        return FunctionJob(folder), spec

    def _hand_in(self, prepared: list[PreparedCall]) -> None:
        """Submit calls, or keep them for the end of the batch."""
        if self._batch is not None:
            self._batch.extend(prepared)
        else:
            self._submit_all(prepared)

    def _end_batch(self) -> list[PreparedCall]:
        with self._lock:
            batch, self._batch = self._batch or [], None
            return batch

    def _submit_all(self, prepared: Iterable[PreparedCall]) -> None:
        with self._lock:
            self._waiting.extend(prepared)
            self._submit_waiting()

    def _submit_waiting(self) -> None:
        """Submit as many as may be submitted now."""
        with self._lock:
            room = self._max_running - len(self._submitted) if self._max_running else len(self._waiting)
            chosen: list[PreparedCall] = []
            while self._waiting and len(chosen) < room:
                future, spec = self._waiting.popleft()
                if not future.done():
                    chosen.append((future, spec))
            for start in range(0, len(chosen), _MAX_SUBMITTED):
                part = chosen[start : start + _MAX_SUBMITTED]
                try:
                    jobs = self._connection.submit_specs(spec for _, spec in part)
                except Exception as error:
                    for future, _ in chosen[start:]:
                        future._fail(error)
                    raise
                for (future, _), job in zip(part, jobs, strict=True):
                    self._follow(future, job)

    def _follow(self, future: FunctionJob[Any], job: Job) -> None:
        """Have a future end with its job."""
        future._job = job
        self._submitted.add(future)
        watcher = self._connection.watcher

        def on_change(message: resources_pb2.Job | MalleTrainError) -> None:
            if isinstance(message, MalleTrainError):
                future._fail(message)
            elif job_state_of(message.state).final:
                watcher.remove(job.id, on_change)
                with suppress(RuntimeError):  # after the end of the interpreter's threads
                    self._helper.submit(_finish, future, message)

        def ended(_: Future[Any]) -> None:
            watcher.remove(job.id, on_change)
            with self._lock:
                self._submitted.discard(future)
            if self._waiting:
                with suppress(RuntimeError):
                    self._helper.submit(self._go_on)

        future.add_done_callback(ended)
        watcher.add(job.id, on_change)
        self._helper.submit(_look_once, job, on_change)

    def _go_on(self) -> None:
        with suppress(MalleTrainError):  # the futures have it
            self._submit_waiting()


def _look_once(job: Job, listener: Callable[[resources_pb2.Job | MalleTrainError], None]) -> None:
    """Look once whether a job had ended before it was followed. If JobManager is away, what is followed says it."""
    with suppress(MalleTrainError):
        listener(job.refresh()._message)


def _finish(future: FunctionJob[Any], ended: resources_pb2.Job) -> None:
    """Take in the result of a job that has ended."""
    try:
        if job_state_of(ended.state) is JobState.CANCELLED:
            future._give_up()
            return
        result = read_result(future.folder)
        deadline = time.monotonic() + _RESULT_SECONDS
        while result is None and job_state_of(ended.state) is JobState.COMPLETED and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            result = read_result(future.folder)
        future._take_result(result, ended)
    except Exception as error:  # noqa: BLE001 - whatever it is, who waits must hear of it
        future._fail(error)


def _own_folder(folder: Path) -> Path:
    """Make the folder of calls.

    Raises:
        InvalidInputError: it can't be made, or others can write it.
    """
    whole = folder.absolute()
    try:
        whole.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError("folder", f"a folder that can be made ({error.strerror})", str(folder)) from error
    if reason := reason_for_distrust(whole):
        expected = f"a folder that nobody else can write, since what is unpickled from it is executed: {reason}"
        raise InvalidInputError("folder", expected, str(folder))
    return whole


def _positive(name: str, value: object, *, zero: bool = False) -> float:
    least = value >= 0 if zero and isinstance(value, int | float) else isinstance(value, int | float) and value > 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not least or value > 1e9:
        raise InvalidInputError(name, f"a number {'of at least' if zero else 'above'} 0", value)
    return float(value)


def _printable(name: str) -> str:
    printable = "".join(letter if letter.isprintable() else " " for letter in name)[:128]
    return printable if printable.strip() else "function"
