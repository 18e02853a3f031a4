"""`malletrain check -- python train.py`: runs a script on this machine and says what it can be used for."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import structlog
import typer

from malletrain.cli.check.finding import BackendVerdict
from malletrain.cli.check.findings import best_of, judge
from malletrain.cli.check.job_run import CheckError, JobRun, ReportRecorder, serve
from malletrain.cli.check.observations import ScriptTrial
from malletrain.cli.check.trying import Limits, try_backend
from malletrain.cli.jobs.job_environment import EnvFileOption, EnvOption, job_environment
from malletrain.cli.shared.output import JsonOption, print_json, print_table
from malletrain.client import observing_site
from malletrain.common.environment import PREIMPORT
from malletrain.common.launch_advice import advise
from malletrain.common.python_command import parse_python_command
from malletrain.common.script_kind import Script, ScriptKind
from malletrain.common.script_reading import read_script
from malletrain.job_manager.launching.folder import socket_path
from malletrain.job_manager.launching.job_secrets import JobSecrets, SupervisorCertificates
from malletrain.job_manager.launching.launch_settings import LaunchSettings, MonitorAddress
from malletrain.job_manager.launching.starting import SupervisorStarter
from malletrain.job_manager.machine.jobs import JobSpec, LauncherBackend
from malletrain.runtime.access.tokens import Tokens
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.errors import InvalidInputError

_BACKENDS = ("horovod", "torchrun", "command")


def check(
    command: Annotated[list[str] | None, typer.Argument(help="Program and arguments, after `--`.")] = None,
    backend: Annotated[
        str, typer.Option(help="Try this backend alone: horovod, torchrun or command. By default those that may fit.")
    ] = "",
    batches: Annotated[int, typer.Option(min=3, max=1000, help="Batches in each part of the check, at least.")] = 10,
    boot_limit: Annotated[
        float, typer.Option(min=1, max=3600, help="Longest wait for the first batch of a part, in seconds.")
    ] = 60.0,
    grace: Annotated[
        float, typer.Option(min=1, max=600, help="How long the script may take to save and end, in seconds.")
    ] = 30.0,
    time_limit: Annotated[
        float, typer.Option(min=10, max=86400, help="Longest time of the whole check, in seconds.")
    ] = 600.0,
    env: EnvOption = None,
    env_file: EnvFileOption = None,
    cold: Annotated[
        bool,
        typer.Option("--cold", help="Start each worker as a new interpreter, never forked from a standby process."),
    ] = False,
    keep: Annotated[
        Path | None, typer.Option(help="Folder for logs and checkpoints; by default they are removed.")
    ] = None,
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Run a script on 1 and 2 local workers, and say what it can be used for: `malletrain check -- python train.py`.

    Exit status: 0 it can be used as it is; 1 something should be changed; 2 it could not be run.
    """
    request = CheckRequest(
        command=_checked_command(command),
        working_directory=Path.cwd(),
        limits=Limits(batches, boot_limit, grace),
        backend=_checked_backend(backend),
        time_limit_seconds=time_limit,
        environment=job_environment(env, env_file, os.environ),
        keep=keep,
        cold=cold,
    )
    # What the launcher logs is for a service; --keep keeps what the supervisors say.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.CRITICAL)
    try:
        verdicts = run_check(request, lambda text: typer.echo(text, err=True))
    except CheckError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    best = best_of(verdicts)
    if as_json:
        print_json(_as_dict(verdicts, best))
    else:
        _print(verdicts, best)
    if best is None or best.findings:
        raise typer.Exit(1)


def _checked_command(command: list[str] | None) -> tuple[str, ...]:
    if not command:
        raise InvalidInputError("command", "a command after `--`")
    parsed = parse_python_command(command)
    if parsed is not None and parsed.kind == "script" and not Path(parsed.target).is_file():
        raise InvalidInputError("command", "a script that exists", parsed.target)
    # The workers' PATH begins with the programs of the training environment.
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    if shutil.which(command[0], path=os.pathsep.join(folders)) is None:
        as_script = f", or `python {command[0]}`" if command[0].endswith(".py") else ""
        raise InvalidInputError("command", f"a program that is on PATH, or an executable file{as_script}", command[0])
    return tuple(command)


def _checked_backend(backend: str) -> str:
    if backend and backend not in _BACKENDS:
        raise InvalidInputError("--backend", f"one of {', '.join(_BACKENDS)}", backend)
    return backend


def _as_dict(verdicts: list[BackendVerdict], best: BackendVerdict | None) -> dict[str, object]:
    return {
        "usable": best is not None and not best.findings,
        "backend": best.backend if best is not None and best.fits else None,
        "findings": [dataclasses.asdict(finding) for finding in best.findings] if best else [],
        "backends": [{**dataclasses.asdict(verdict), "fits": verdict.fits} for verdict in verdicts],
    }


def _print(verdicts: list[BackendVerdict], best: BackendVerdict | None) -> None:
    for verdict in verdicts:
        rows = list(verdict.answers.items())
        rows += [(name.replace("_", " "), f"{seconds:.3g} s") for name, seconds in verdict.seconds.items()]
        print_table(("question", "answer"), rows, title=f"backend {verdict.backend}")
    for finding in best.findings if best else ():
        typer.echo(f"{finding.code}: {finding.what}\n    change: {finding.change}")
    if best and best.unsure:
        typer.echo(best.unsure)
    fitting = [verdict.backend for verdict in verdicts if verdict.fits]
    typer.echo(f"backends that fit: {', '.join(fitting) or 'none'}")


_OBSERVER = "malletrain.client.observing"
_SECONDS_PER_START = 8.0
_STOP_SECONDS = 2.0
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
    """Remove the folder of sockets, which is apart from the job's where that path is too long for the kernel."""
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
        # The reporters have ended. A stream that is cut off before it has noticed that prints a traceback.
        await server.stop(_STOP_SECONDS)


class _Check:
    """What the parts of one check share."""

    def __init__(self, request: CheckRequest, folder: Path, recorder: ReportRecorder, address: str) -> None:
        self._request = request
        self._folder = folder
        self._recorder = recorder
        self._mark = secrets.token_hex(4)
        self._starter = _starter(request, folder, address)

    async def run(self, say: Callable[[str], None]) -> list[BackendVerdict]:
        request = self._request
        paths = request.environment.get("PATH"), request.environment.get("PYTHONPATH", "")
        script = read_script(request.command, request.working_directory, *paths)
        chosen = (request.backend,) if request.backend else backends_for(script)
        say(_duration_in_words(chosen, request))
        return [judge(await self._try(backend, script, say)) for backend in chosen]

    async def _try(self, backend: str, script: Script, say: Callable[[str], None]) -> ScriptTrial:
        say(f"backend {backend}:")
        request = self._request
        spec = JobSpec(
            name="check",
            command=request.command,
            working_directory=str(request.working_directory),
            min_nodes=1,
            max_nodes=2,
            environment=observing_environment(request, backend),
            slots_per_node=1,
            backend=LauncherBackend(backend.upper()),
            cold_start=request.cold,
        )
        await self._await_standby(spec)

        def open_job(name: str) -> JobRun:
            job_id = f"check-{self._mark}-{backend}-{name}"
            return JobRun(job_id, self._folder, spec, self._starter, self._recorder)

        trial = await try_backend(backend, open_job, self._recorder, request.limits, say, alone=backend == _COMMAND)
        return replace(trial, kind=advise(script, request.backend).note)

    async def _await_standby(self, spec: JobSpec) -> None:
        """Workers are forked in production, too: so what they import is imported once."""
        if spec.backend is LauncherBackend.COMMAND:
            return  # its programs are never forked
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
        trainer_python=trainer_python(request.command, request.working_directory),
        monitor=MonitorAddress(address),
        standby_memory_bytes=0 if request.cold else _STANDBY_BYTES,
        forks_supervisors=not request.cold,
    )
    # The stand-in for Monitor asks nobody who he is, and there are no agents.
    tokens = Tokens(secrets.token_bytes(32), SystemClock())
    certificates = SupervisorCertificates(Path(), lambda *_: "", 3600.0)
    return SupervisorStarter(settings, os.environ, JobSecrets(tokens, 86400.0, certificates), {})


def observing_environment(request: CheckRequest, backend: str) -> dict[str, str]:
    """The script's variables, with those by which its processes note their steps.

    A worker that is Python imports the observer before the script. Of other commands, every Python that they start
    does, once it has imported torch.
    """
    own = dict(request.environment)
    if backend != _COMMAND and parse_python_command(request.command) is not None:
        return {**own, PREIMPORT: ",".join(filter(None, (own.get(PREIMPORT, ""), _OBSERVER)))}
    site = str(Path(observing_site.__path__[0]))
    before = own.get("PYTHONPATH") or os.environ.get("PYTHONPATH", "")
    return {**own, "PYTHONPATH": os.pathsep.join(filter(None, (site, before)))}


def trainer_python(command: Sequence[str], directory: Path) -> str:
    """The interpreter that a supervisor runs with: that of the command where it names one by a path, else our own.

    Ours, too, where that one can't run a supervisor: a training environment may need an older protobuf, as that of
    TensorFlow up to 2.19 does. The script then runs with its own all the same.
    """
    if parse_python_command(command) is None or os.sep not in command[0]:
        return sys.executable
    python = str(Path(directory, command[0]))
    try:
        tried = subprocess.run([python, "-P", "-c", _NEEDED], capture_output=True, timeout=_PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return sys.executable
    return python if tried.returncode == 0 else sys.executable


def backends_for(script: Script) -> tuple[str, ...]:
    """The backends that a script may be made for; Horovod only where it is installed."""
    if importlib.util.find_spec("horovod") is None:
        return ("torchrun",) if script.kind is ScriptKind.ANY_BACKEND else _BACKENDS_OF.get(script.kind, _ALONE)
    return _BACKENDS_OF.get(script.kind, _ALONE)


_NEEDED = "import grpc; import malletrain.v1.supervisor_pb2"
_PROBE_SECONDS = 60.0
_COMMAND = "command"
_ALONE = (_COMMAND,)
_BACKENDS_OF = {
    ScriptKind.ANY_BACKEND: ("torchrun", "horovod"),
    ScriptKind.ELASTIC_HOROVOD: ("horovod",),
    ScriptKind.HOROVOD: ("horovod",),
    ScriptKind.TORCHRUN: ("torchrun",),
    ScriptKind.UNKNOWN: ("torchrun", _COMMAND),
}


def _duration_in_words(backends: Sequence[str], request: CheckRequest) -> str:
    """What is said before anything is started: most of the time are starts."""
    starts = sum(3 if backend == _COMMAND else 4 for backend in backends)
    least = starts * _SECONDS_PER_START
    return (
        f"{starts} starts of the script ({', '.join(backends)}), at least {request.limits.batches} batches each: about"
        f" {least:.0f} s, and {starts} times what it needs to begin; at most {request.time_limit_seconds:g} s"
        " (--time-limit)"
    )
