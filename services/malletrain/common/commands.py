"""Runs commands from an event loop, with deadlines that hold even if a command can't be started or killed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from malletrain.common.child_process import ChildProcess, spawn, through_shell
from malletrain.common.tasks import start_thread

_THREAD = "command"
"""Name of the thread of each command that has not ended."""
MAX_UNENDED = 64
_START_SECONDS = 10.0
_END_SECONDS = 2.0
_LINE_BYTES = 64 << 10


class StartTimeoutError(TimeoutError):
    """A command has not begun in time; it is killed should it do so later."""


class _Start:
    """The start of a command in a thread of its own, which also waits for the end: either may take for ever.

    Attributes:
        begun: Told the process.
        ended: Set when the process has ended; it has not been collected then.
        status: Exit status, negative for a signal; None while it has not ended.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: str | None,
        files: tuple[int, int, int],
        *,
        own_session: bool,
    ) -> None:
        self.begun: asyncio.Future[ChildProcess] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()
        self.status: int | None = None
        self._loop = asyncio.get_running_loop()
        self._command, self._environment, self._folder = command, environment, folder
        self._own_session = own_session
        self._files: list[int] = []
        try:
            for number in files:
                self._files.append(os.dup(number))
        except OSError:
            self._close_files()
            raise
        self._lock = threading.Lock()
        self._process: ChildProcess | None = None
        self._given_up = False
        try:
            start_thread(self._run, "command")
        except RuntimeError as error:  # so says Python where the machine has no room for another task
            self._close_files()
            raise OSError(errno.EAGAIN, str(error)) from error

    def kill(self) -> None:
        """Kill its process group, also what is left of that after the end of the command itself."""
        with self._lock:
            # Until it is collected, nobody else gets its number.
            if self._process is not None and self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def give_up(self) -> None:
        """Nobody wants it any more: it is killed now or when it begins, and collected when it ends."""
        self.kill()
        with self._lock:
            self._given_up = True
            if self._process is not None and self.ended.is_set():
                self._process.poll()

    def _run(self) -> None:
        try:
            words = through_shell(self._command, self._environment, self._folder)
            source, output, errors = self._files
            process = spawn(
                *(words, self._environment),
                stdin=source,
                stdout=output,
                stderr=errors,
                new_session=self._own_session,
                new_group=not self._own_session,
            )
        except (OSError, ValueError) as error:
            self._tell(self._fail, error)
            return
        finally:
            self._close_files()
        with self._lock:
            self._process = process
            unwanted = self._given_up
        if unwanted:
            self.kill()
        else:
            self._tell(self.begun.set_result, process)
        try:
            exit_info = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # somebody else has collected it: `poll` says what that means
            status = process.poll() or 0
        else:
            assert exit_info is not None
            status = exit_info.si_status if exit_info.si_code == os.CLD_EXITED else -exit_info.si_status
        with self._lock:
            if self._given_up:
                process.poll()
        self._tell(self._end, status)

    def _close_files(self) -> None:
        for number in self._files:
            os.close(number)

    def _fail(self, error: Exception) -> None:
        if not self._given_up:
            self.begun.set_exception(error)

    def _end(self, status: int) -> None:
        self.status = status
        self.ended.set()
        if self._given_up:
            self.give_up()

    def _tell(self, what: Callable[..., object], *about: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(what, *about)


class RunningCommand:
    """A command that runs, in a process group of its own.

    Attributes:
        pid: Process id, which is also that of its group.
        stdout: What it prints; empty if it is not heard.
        stderr: What it says on standard error; empty if it is not heard.
    """

    def __init__(self, start: _Start, process: ChildProcess, output: _Output, errors: _Output) -> None:
        self.pid = process.pid
        self.stdout, self.stderr = output.stream, errors.stream
        self._start, self._outputs = start, (output, errors)

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self._start.status

    async def wait(self) -> int:
        """Wait for its end; returns the exit status."""
        await self._start.ended.wait()
        assert self._start.status is not None
        return self._start.status

    async def communicate(self) -> tuple[bytes, bytes]:
        """All that it prints and says until its end."""
        output, errors, _ = await asyncio.gather(self.stdout.read(), self.stderr.read(), self.wait())
        return output, errors

    def kill(self) -> None:
        """Kill its process group, also what is left of that after the end of the command itself."""
        self._start.kill()

    async def close(self) -> None:
        """Kill its process group and close its pipes. Waits two seconds for its end: the kernel may hold it longer."""
        self.kill()
        for output in self._outputs:
            output.close()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_SECONDS):
                    await self.wait()
        finally:
            self._start.give_up()


class _Output:
    """One of the standard outputs of a command, which goes nowhere until it is opened."""

    def __init__(self, line_bytes: int) -> None:
        self.stream = asyncio.StreamReader(line_bytes)
        self.writing = os.open(os.devnull, os.O_WRONLY)
        self._transport: asyncio.BaseTransport | None = None

    async def open(self) -> None:
        """Make the pipe, and read from it in this event loop."""
        os.close(self.writing)
        reading, self.writing = os.pipe()
        loop = asyncio.get_running_loop()
        file = os.fdopen(reading, "rb", 0)
        self._transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(self.stream), file)

    def began(self) -> None:
        """The command has its descriptor."""
        os.close(self.writing)
        if self._transport is None:
            self.stream.feed_eof()

    def close(self) -> None:
        """Stop reading."""
        if self._transport is not None:
            self._transport.close()


async def start_command(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    folder: str | None = None,
    stdin: bytes | None = None,
    hear_output: bool = True,
    hear_errors: bool = True,
    line_bytes: int = _LINE_BYTES,
    seconds: float = _START_SECONDS,
    own_session: bool = True,
) -> RunningCommand:
    """Start a command in a process group of its own. The event loop goes on meanwhile. In the end, call `close`.

    Args:
        command: Program and arguments.
        environment: The whole environment; variables with names that are odd to a shell may get lost.
        folder: Working directory; None: that of this process.
        stdin: Its standard input, as a file; None: there is none.
        hear_output: Whether to read its standard output; else it goes nowhere.
        hear_errors: Whether to read its standard error; else it goes nowhere.
        line_bytes: Longest line that is read at once, in bytes.
        seconds: How long the start may take.
        own_session: Whether it leads a session of its own, too.

    Raises:
        StartTimeoutError: it has not begun in time, or too many earlier ones have not ended.
        OSError: it can't be started.
        ValueError: there is a null byte in what it is started with.
    """
    if sum(thread.name == _THREAD for thread in threading.enumerate()) >= MAX_UNENDED:
        raise StartTimeoutError(errno.ETIMEDOUT, f"{MAX_UNENDED} earlier commands have not ended")
    output, errors = _Output(line_bytes), _Output(line_bytes)
    source = _input(stdin)
    try:
        for heard, stream in ((hear_output, output), (hear_errors, errors)):
            if heard:
                await stream.open()
        start = _Start(command, environment, folder, (source, output.writing, errors.writing), own_session=own_session)
    except BaseException:
        output.close()
        errors.close()
        raise
    finally:
        os.close(source)
        output.began()
        errors.began()
    try:
        async with asyncio.timeout(seconds):
            process = await asyncio.shield(start.begun)
    except BaseException as error:
        start.give_up()
        output.close()
        errors.close()
        if isinstance(error, TimeoutError) and not isinstance(error, StartTimeoutError):
            raise StartTimeoutError(errno.ETIMEDOUT, f"it has not begun within {seconds:g} s") from None
        raise
    return RunningCommand(start, process, output, errors)


def _input(content: bytes | None) -> int:
    """Descriptor of a standard input: a file in memory, so that nobody waits until a program has read it."""
    if content is None:
        return os.open(os.devnull, os.O_RDONLY)
    descriptor = os.memfd_create("stdin", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
