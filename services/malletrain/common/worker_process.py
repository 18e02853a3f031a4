"""Worker processes on this machine, for the supervisor and for agents; and killing all processes of a job."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from malletrain.common import environment as env
from malletrain.common.accounts import Account, acting_as
from malletrain.common.cgroups import Cgroup
from malletrain.common.child_process import ChildProcess
from malletrain.common.files import open_log
from malletrain.common.orderly_leave import OrderlyLeave
from malletrain.common.processes import belongs_to, identify, kill_processes, process_ids, read_status
from malletrain.common.python_command import PythonCommand, parse_python_command
from malletrain.common.standby.process import ForkedProcess
from malletrain.common.standby.processes import WorkerForks
from malletrain.common.start_process import join_cgroup, start_process
from malletrain.common.worker_bootstrap import PREPARE

BOOTSTRAP = Path(__file__).with_name("worker_bootstrap.py")
"""The program that each worker process runs first."""

_STARTED = b"s"
_WARM = b"w"
_PREPARED = b"p"
_ENDS = {b"e": 0, b"f": 1}
"""What a worker reports when its job's own code has ended, with the exit status that this means."""


class WorkerProcess:
    """A worker process. It boots when it is created, and runs the job's own code once `go` is called.

    Attributes:
        started: Whether the job's own code runs, as of the last call of `is_warm`.
        going: Whether `go` has been called.
        killed: Whether `kill` has been called.
        place: Variables of the place that `prepare` has told; None before.
        status: Bytes that `worker_bootstrap` has sent so far: "w" once it has booted, "p" once it has prepared for its
            place, "s" once the job's own code runs, "e" once that has ended well, or "f" once it has failed.
    """

    def __init__(
        self,
        command: Iterable[str],
        folder: str,
        environment: Mapping[str, str],
        log: Path,
        *,
        warm: bool = True,
        account: Account | None = None,
        standby: WorkerForks | None = None,
        group: Cgroup | None = None,
        handover: int = -1,
    ) -> None:
        """Start the process in a session of its own.

        Args:
            log: File to which its output is appended.
            warm: Whether a Python worker imports the modules of its script before `go`.
            account: As whom it runs; None: as this process.
            standby: Keeps a standby process of the account, which forks the worker if it can; None: it is started as
                a new interpreter. This process must have asked for the orphans of its descendants.
            group: The cgroup that it joins, if it can; None: that of this process, or of the standby process.
            handover: Descriptor of the memory in which it may leave its state to the next worker of its place; -1:
                there is none. See `malletrain.common.handover_memory`.

        Raises:
            OSError: the interpreter or the folder is missing.
            AccountError: this process may not start anything as the account.
        """
        self._account = account
        self._group = group
        self._handover = () if handover < 0 else (handover,)
        self.started = False
        self.going = False
        self.killed = False
        self.place: Mapping[str, str] | None = None
        self.status = b""
        self._code: int | None = None
        self._is_trainer = warm and warm_command(list(command)) is not None
        self._leave: OrderlyLeave | None = None
        self._process: ChildProcess
        forked = None if standby is None or not warm else self._fork(standby, list(command), folder, environment, log)
        self._process = forked or self._start(list(command), folder, environment, log, warm)

    def _fork(
        self, standby: WorkerForks, command: list[str], folder: str, environment: Mapping[str, str], log: Path
    ) -> ChildProcess | None:
        """Have a standby process fork it; None if it does not, or if a new interpreter would fail to start here."""
        if self._account is None and not Path(folder).is_dir():
            return None
        with acting_as(self._account):
            output = open_log(log)
        with output, self._open_pipes() as pipes:
            pid = standby.fork(command, folder, environment, output.fileno(), (*pipes, *self._handover))
            if pid is not None:
                if self._group is not None:
                    join_cgroup(self._group, pid, output.fileno())
                return ForkedProcess(pid)
        self.close()  # should there be a process nevertheless, it ends
        return None

    def _start(
        self, command: list[str], folder: str, environment: Mapping[str, str], log: Path, warm: bool
    ) -> ChildProcess:
        with self._open_pipes() as (control, status):
            pipes = (control, status, *self._handover)
            arguments = worker_command(command, sys.executable, os.getpid(), pipes, warm=warm)
            return start_process(
                arguments, folder, environment, log, pass_fds=pipes, account=self._account, group=self._group
            )

    @contextlib.contextmanager
    def _open_pipes(self) -> Iterator[tuple[int, int]]:
        """The worker's ends of its two pipes, which are closed here afterwards."""
        control_read, self._control = os.pipe()
        self._status_pipe, status_write = os.pipe()
        os.set_blocking(self._status_pipe, False)
        os.set_blocking(self._control, False)
        try:
            yield control_read, status_write
        except BaseException:
            self.close()
            raise
        finally:
            os.close(control_read)
            os.close(status_write)

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its session and process group."""
        return self._process.pid

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while it runs.

        A process that has hung after the end of the job's own code has ended as that did.
        """
        if self._code is None:
            if self._leave is not None:
                self._leave.advance(time.monotonic())
            code = self._process.poll()
            self._code = self._code_end() if code == -signal.SIGALRM else code
        return self._code

    def _code_end(self) -> int:
        self._read_status()
        codes = [code for letter, code in _ENDS.items() if letter in self.status]
        return codes[0] if codes else -signal.SIGALRM

    def is_stopped(self) -> bool:
        """Whether a signal such as SIGSTOP has stopped it. A process that a debugger holds is not stopped."""
        status = read_status(self.pid)
        return status is not None and status.state == "T"

    def is_warm(self) -> bool:
        """Whether it has booted and waits for its place, or has waited. Updates `started`."""
        self._read_status()
        self.started = _STARTED in self.status
        return _WARM in self.status

    def is_prepared(self) -> bool:
        """Whether it has done what it can for the place that `prepare` has told, and waits for `go`, or has waited."""
        self._read_status()
        return _PREPARED in self.status

    def _read_status(self) -> None:
        with contextlib.suppress(BlockingIOError):
            letters = os.read(self._status_pipe, 64)
            self.status += bytes(letter for letter in dict.fromkeys(letters) if letter not in self.status)

    def prepare(self, environment: Mapping[str, str]) -> None:
        """Have it get ready for a place. `go` follows once the place is certain. Call it once, before `go`.

        Args:
            environment: Variables of the place, as far as is known. For another place another worker is needed.
        """
        self.place = dict(environment)
        self._send(PREPARE, environment)

    def go(self, environment: Mapping[str, str]) -> None:
        """Let the job's own code run, with these variables added to its environment."""
        if self.going:
            return
        self.going = True
        self._send("", environment)

    def _send(self, word: str, environment: Mapping[str, str]) -> None:
        line = f"{word}{json.dumps(dict(environment))}\n".encode()
        try:
            written = os.write(self._control, line)
        except BrokenPipeError:
            return  # it has just ended; `poll` reports it
        except BlockingIOError:
            written = 0
        if written < len(line):
            self.kill()  # more than a pipe takes: nobody waits here until the worker reads

    def terminate(self, grace: float) -> None:
        """Send SIGTERM: it may save its state, and then ends.

        A trainer that this process itself is gets it alone: its data loaders and its sidecar end with it. Any other
        command may have started the trainer. The innermost of its processes get the signal first, the others by and
        by; see `OrderlyLeave`. Have `poll` called meanwhile.

        Args:
            grace: When it is killed otherwise, in seconds from now.
        """
        now = time.monotonic()
        if self._leave is not None:
            self._leave.shorten(now + grace)
        elif self.going and not self._is_trainer:
            self._leave = OrderlyLeave(self.pid, now, grace, None if self._account is None else self._account.user_id)
        else:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill its process group. Also works after the process itself has ended.

        Its sidecar has a group of its own in the same session, and delivers what is left; see `kill_session`.
        """
        self.killed = True
        if self._account is not None and self._process.returncode is not None:
            # Its number may be that of somebody else's group by now, and root would kill that.
            self._kill_each(os.getpgid)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def has_session(self) -> bool:
        """Whether any process of its session still runs. Call after the process itself has ended."""
        return next(self._members(os.getsid), None) is not None

    def kill_session(self) -> None:
        """Kill what is left of its session. Call after the process itself has ended."""
        self._kill_each(os.getsid)

    def _kill_each(self, belongs_by: Callable[[int], int]) -> None:
        for pid in self._members(belongs_by):
            if (process := identify(pid)) is not None:
                (process if self._account is None else replace(process, user_id=self._account.user_id)).kill()

    def _members(self, belongs_by: Callable[[int], int]) -> Iterator[int]:
        for pid in process_ids():
            with contextlib.suppress(OSError):  # it has just ended
                if belongs_by(pid) == self.pid and identify(pid) is not None and self._is_ours(pid):
                    yield pid

    def _is_ours(self, pid: int) -> bool:
        return self._account is None or belongs_to(pid, self._account.user_id)

    def close(self) -> None:
        """Close the pipes to the process."""
        for descriptor in (self._control, self._status_pipe):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def worker_command(
    command: Sequence[str], python: str, parent: int, pipes: tuple[int, ...], *, warm: bool = True
) -> list[str]:
    """Command line of a worker process, which runs `worker_bootstrap` first.

    Args:
        command: The job's command.
        python: Interpreter for commands that are not Python.
        parent: Process id of the process that starts the worker.
        pipes: File descriptors: one from which the worker reads its start, one to which it writes its status, and,
            if there is one, that of its memory for a handover.
        warm: Whether a Python worker imports the modules of its script before its start.
    """
    numbers = [str(number) for number in (parent, *pipes)]
    parsed = warm_command(command) if warm else None
    if parsed is None:
        return [python, str(BOOTSTRAP), *numbers, "cold", *command]
    return [*parsed.interpreter, str(BOOTSTRAP), *numbers, "warm", parsed.kind, parsed.target, *parsed.arguments]


def warm_command(command: Sequence[str]) -> PythonCommand | None:
    """Parse a command whose worker can import modules before its start: a Python script or module.

    Returns:
        None for other commands, and for a script whose first line is skipped (`python -x`), which `runpy` can't do.
    """
    parsed = parse_python_command(command)
    return None if parsed is None or parsed.skips_first_line else parsed


def kill_workers(
    job_id: str,
    nodes: Iterable[str] | None = None,
    marks: Mapping[str, str] | None = None,
    account: Account | None = None,
) -> list[int]:
    """Send SIGKILL once to each process of a job's workers, including those outside their process group.

    They are found by the environment that they were started with: data loaders and sidecars inherit it.

    Args:
        job_id: The job.
        nodes: Only processes of workers on these nodes; None: on all.
        marks: Variables that the processes must also have.
        account: Only this account's processes; None: those of this process's own.

    Returns:
        Process ids of those that were alive.
    """
    wanted = {env.JOB_ID: job_id, **(marks or {})}
    only = None if nodes is None else set(nodes)

    def belongs(environment: Mapping[str, str]) -> bool:
        node = environment.get(env.NODE)
        return node is not None and (only is None or node in only) and wanted.items() <= environment.items()

    def is_ours(_: Mapping[str, str], user_ids: frozenset[int]) -> bool:
        return bool(user_ids) if account is None else user_ids == {account.user_id}

    users = {os.geteuid() if account is None else account.user_id}
    return [process.pid for process in kill_processes(belongs, is_ours, users)]
