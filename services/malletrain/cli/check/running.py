"""Runs a whole check: which backends are tried, and with what."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from malletrain.cli.check.finding import BackendVerdict
from malletrain.cli.check.findings import judge
from malletrain.cli.check.job_run import CheckError, JobRun
from malletrain.cli.check.observations import ScriptTrial
from malletrain.cli.check.recorder import ReportRecorder, serve
from malletrain.cli.check.trying import Limits, try_backend
from malletrain.common.python_command import parse_python_command
from malletrain.job_manager.jobs import JobSpec, LauncherBackend
from malletrain.job_manager.launching.environment import MonitorAddress
from malletrain.job_manager.launching.folder import socket_path
from malletrain.job_manager.launching.job_secrets import JobSecrets, SupervisorCertificates
from malletrain.job_manager.launching.starting import LaunchSettings, SupervisorStarter
from malletrain.runtime.access.tokens import Tokens
from malletrain.runtime.clock import SystemClock

_OBSERVER = "malletrain.client.observe"
_HOROVOD = "horovod"
_HOROVOD_HELPER = "malletrain.client.horovod"
_ANY_BACKEND = "malletrain.client.elastic"
_STANDBY_BYTES = 2 << 30
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What is to be checked.

    Attributes:
        command: Program and arguments.
        working_directory: Where it runs.
        limits: How long its parts may take.
        backend: The one backend to try; empty: those that fit the script.
        time_limit_seconds: Longest time of the whole check.
        environment: Variables of the script.
        keep: Folder that the jobs' folders go to; None: one that is removed.
        cold: Whether each worker is a new interpreter, never forked from a standby process.
    """

    command: tuple[str, ...]
    working_directory: Path
    limits: Limits
    backend: str = ""
    time_limit_seconds: float = 600.0
    environment: Mapping[str, str] = field(default_factory=dict)
    keep: Path | None = None
    cold: bool = False


def run_check(request: CheckRequest, say: Callable[[str], None]) -> list[BackendVerdict]:
    """Check a script; what was found out, by backend.

    Args:
        request: What is to be checked.
        say: Called with what happens.

    Raises:
        CheckError: it can't be made, or has taken too long.
        KeyboardInterrupt: it was interrupted by Ctrl-C or SIGTERM; nothing of it is left.
    """
    folder = request.keep or Path(tempfile.mkdtemp(prefix="malletrain-check-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return asyncio.run(_run(request, folder.resolve(), say))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    except OSError as error:
        raise CheckError(f"the check can't be made: {error}") from error
    finally:
        _remove_sockets(folder.resolve())
        if request.keep is None:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_sockets(folder: Path) -> None:
    """Where the folder's path is too long for the kernel, sockets lie in one of their own."""
    beside = socket_path(folder, "check", 1).parent
    if not beside.is_relative_to(folder):
        shutil.rmtree(beside, ignore_errors=True)


async def _run(request: CheckRequest, folder: Path, say: Callable[[str], None]) -> list[BackendVerdict]:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    recorder = ReportRecorder()
    server, address = await serve(recorder)
    check = _Check(request, folder, recorder, address)
    try:
        async with asyncio.timeout(request.time_limit_seconds):
            return await check.run(say)
    except TimeoutError:
        raise CheckError(f"the check has taken longer than {request.time_limit_seconds:g} s (--time-limit)") from None
    finally:
        check.close()
        await server.stop(None)


class _Check:
    """What the parts of one check share."""

    def __init__(self, request: CheckRequest, folder: Path, recorder: ReportRecorder, address: str) -> None:
        self._request = request
        self._folder = folder
        self._recorder = recorder
        self._mark = secrets.token_hex(4)
        self._starter = _starter(request, folder, address)

    async def run(self, say: Callable[[str], None]) -> list[BackendVerdict]:
        chosen = (self._request.backend,) if self._request.backend else backends_for(self._request)
        return [judge(await self._try(backend, say)) for backend in chosen]

    async def _try(self, backend: str, say: Callable[[str], None]) -> ScriptTrial:
        say(f"backend {backend}: 1 worker, a stop, 1 worker again, 2 workers, and once without a stop")
        command, observed = observed_command(self._request.command)
        spec = JobSpec(
            name="check",
            command=command,
            working_directory=str(self._request.working_directory),
            min_nodes=1,
            max_nodes=2,
            environment=self._request.environment,
            slots_per_node=1,
            backend=LauncherBackend(backend.upper()),
            cold_start=self._request.cold,
        )
        await self._await_standby(spec)

        def open_job(name: str) -> JobRun:
            job_id = f"check-{self._mark}-{backend}-{name}"
            return JobRun(job_id, self._folder, spec, self._starter, self._recorder)

        return await try_backend(backend, open_job, self._recorder, self._request.limits, observed=observed)

    async def _await_standby(self, spec: JobSpec) -> None:
        """Workers are forked in production, too: so what they import is imported once."""
        deadline = time.monotonic() + self._request.limits.boot_seconds
        self._starter.tend_standby([spec], may_start=True)
        while not self._request.cold and not self._starter.can_fork and time.monotonic() < deadline:
            if parse_python_command(spec.command) is None:
                return
            await asyncio.sleep(_POLL_SECONDS)
            self._starter.tend_standby([spec], may_start=True)

    def close(self) -> None:
        """End the standby process."""
        self._starter.close()


def _starter(request: CheckRequest, folder: Path, address: str) -> SupervisorStarter:
    settings = LaunchSettings(
        state_dir=folder,
        jobs_dir=folder / "jobs",
        trainer_python=trainer_python(request.command),
        monitor=MonitorAddress(address),
        standby_memory_bytes=0 if request.cold else _STANDBY_BYTES,
        forks_supervisors=not request.cold,
    )
    # The stand-in for Monitor asks nobody who he is, and there are no agents.
    tokens = Tokens(secrets.token_bytes(32), SystemClock())
    certificates = SupervisorCertificates(Path(), lambda *_: "", 3600.0)
    return SupervisorStarter(settings, os.environ, JobSecrets(tokens, 86400.0, certificates), {})


def observed_command(command: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """The command that runs the script under observation, and whether that is possible."""
    parsed = parse_python_command(command)
    if parsed is None or parsed.skips_first_line:
        return tuple(command), False
    return (*parsed.interpreter, "-m", _OBSERVER, parsed.kind, parsed.target, *parsed.arguments), True


def trainer_python(command: Sequence[str]) -> str:
    """The interpreter of the training environment: that of the command where it names one by a path, else our own."""
    parsed = parse_python_command(command)
    return command[0] if parsed is not None and os.sep in command[0] else sys.executable


def backends_for(request: CheckRequest) -> tuple[str, ...]:
    """The backends that a script may be made for, as its imports show; Horovod only where it is installed."""
    parsed = parse_python_command(request.command)
    if parsed is None or parsed.kind != "script" or importlib.util.find_spec(_HOROVOD) is None:
        return ("torchrun",)
    imported = _imported(request.working_directory / parsed.target)
    if _ANY_BACKEND in imported:
        return ("torchrun", "horovod")
    return ("horovod",) if imported & {_HOROVOD, _HOROVOD_HELPER} else ("torchrun",)


def _imported(script: Path) -> set[str]:
    """Names of the modules that a script imports, anywhere in it, and of those that contain them."""
    try:
        tree = ast.parse(script.read_bytes())
    except (SyntaxError, ValueError):
        return set()  # it does not begin to train, and the check says why
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {".".join(parts[:end]) for parts in (name.split(".") for name in names) for end in range(1, len(parts) + 1)}
