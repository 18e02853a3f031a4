"""The services of `malletrain up`: each in a process, which is started again where it ends or hangs."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import typer

from malletrain.cli.operate.service_forks import ServiceForks
from malletrain.cli.operate.service_health import Activity, HealthAnswer, HealthQuestions, Silence, activity_of
from malletrain.cli.operate.service_logs import LogRotation, last_line
from malletrain.cli.operate.state_folder import lock_state_folder, prepare_state_folder
from malletrain.cli.shared.settings import AllSettings, check_named_files, load
from malletrain.cli.shared.terminal import has_terminal
from malletrain.common.awaited_signals import AwaitedSignals
from malletrain.common.backoff import Backoff
from malletrain.common.child_process import ChildProcess
from malletrain.common.files import make_private_folder
from malletrain.runtime.access.installation import open_installation
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.errors import MalleTrainError
from malletrain.runtime.settings_file import SERVICES
from malletrain.runtime.watchdog import watchdog_for

_POLL_SECONDS = 0.1
_FIRST_POLL_SECONDS = 0.02
"""While people wait for the services' first answers."""
_FIRST_PAUSE_SECONDS = 0.2
_MAX_PAUSE_SECONDS = 5.0
_TRIES_BEFORE_FIRST_SERVING = 3
_STOP_SECONDS = 20.0
_KILL_SECONDS = 5.0
_TELL_SECONDS = 3.0
_FIRST_HANG_PAUSE_SECONDS = 1.0
_MAX_HANG_PAUSE_SECONDS = 60.0
_BOOT_SECONDS = 60.0
"""How much longer than another one a service that is started again may take until its first answer."""
_STEADY_SECONDS = 30.0
"""A service that has answered for so long since its start has not ended for the same reason as the one before."""
_SOUND_SECONDS = 600.0
"""A service that has answered for so long since its start has not hung for the same reason as the one before."""
_FREE_SECONDS = 5.0
"""How long the services of a `malletrain up` that was killed may go on listening."""
_WRONG_USE = 2


def run(config: Path | None, parent: int | None, forks: ServiceForks) -> None:
    """Run the services until a signal ends this process, or its parent is another one.

    Args:
        config: The settings file; None: the default one.
        parent: Process id of the parent; None: whoever it is.
        forks: Starts services.

    Raises:
        MalleTrainError: settings, the state folder or an address can't be used, or a service does not start.
    """
    settings = load(config)
    check_named_files(settings)
    prepare_state_folder(settings)
    typer.echo("starting the services, which may take half a minute", err=True)
    # Here, so that a key or a certificate that can't be used is told at once.
    installation = open_installation(settings, SystemClock())
    installation.owner_token().renew()
    installation.certificates().renew()
    watchdog = watchdog_for(os.environ, 0.0)
    ending = AwaitedSignals(signal.SIGTERM, signal.SIGINT)
    with lock_state_folder(settings.state_dir):
        runner = ServiceRunner(settings, config, watchdog.serving, forks)
        try:
            wait_for_free_addresses(settings)
            runner.start()
            while not ending.wait(runner.poll_seconds) and parent in (None, os.getppid()):
                runner.check()
                runner.rotate_logs()
                watchdog.alive()
        finally:
            watchdog.stopping()
            runner.stop(ending)


def wait_for_free_addresses(settings: AllSettings) -> None:
    """Wait until nothing listens where the services will: the services of another installation would pass for ours.

    Raises:
        MalleTrainError: an address stays taken, or is not one of this machine.
    """
    deadline = time.monotonic() + _FREE_SECONDS
    pause = threading.Event()
    for name in SERVICES:
        address = settings.addresses.of(name)
        while error := _why_not_free(address):
            if time.monotonic() > deadline:
                raise MalleTrainError(
                    f"{name} can't listen on {address} ({error}): end the program that does, or set addresses.{name}"
                )
            pause.wait(_POLL_SECONDS)


def _why_not_free(address: str) -> str:
    """Why one can't listen on an address; empty if one can."""
    host, _, port = address.rpartition(":")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen(1)
    except OSError as error:
        return error.strerror or str(error)
    return ""


@dataclass
class ServiceProcess:
    """The process of one service.

    Attributes:
        name: Name of the service.
        process: The process; None while it waits to be restarted.
        served: Whether it has answered since its start.
        questions: Asks it whether it serves.
        failures: How often it has ended without having answered.
        backoff: How long to wait before the next restart.
        hang_backoff: How long to wait after it has hung.
        start_in: Seconds until the next restart.
        started: When it was started, in monotonic seconds.
        silence: How long it has not answered.
        activity: What it did at the last look; None: that is not known.
        hung: What it is killed for; empty: it is not.
    """

    name: str
    questions: HealthQuestions
    process: ChildProcess | None = None
    served: bool = False
    failures: int = 0
    backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS))
    hang_backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_HANG_PAUSE_SECONDS, _MAX_HANG_PAUSE_SECONDS))
    start_in: float = 0.0
    started: float = 0.0
    silence: Silence = field(default_factory=Silence)
    activity: Activity | None = None
    hung: str = ""


class ServiceRunner:
    """Starts the services, restarts those that end or hang, and stops all of them.

    Attributes:
        services: The process of each service.
    """

    def __init__(
        self,
        settings: AllSettings,
        config: Path | None,
        all_serve: Callable[[], object],
        forks: ServiceForks,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing happens before `start`.

        Args:
            config: File of settings that they get; None: the usual one.
            all_serve: Called when all services have served once.
            forks: Starts processes of services.
            monotonic: Monotonic clock in seconds.
        """
        self._settings = settings
        self._all_serve = all_serve
        self._config = config
        self._monotonic = monotonic
        self._looked = monotonic()
        self.services = [ServiceProcess(name, HealthQuestions(settings.peer(name))) for name in SERVICES]
        self._rotation = LogRotation(settings.log_mib * 2**20, settings.log_copies)
        self._unrotated: set[str] = set()
        self._announced = False
        self._forks = forks

    @property
    def poll_seconds(self) -> float:
        """How long to wait until the next `check`."""
        return _POLL_SECONDS if self._announced else _FIRST_POLL_SECONDS

    def start(self) -> None:
        """Start every service."""
        for service in self.services:
            self._launch(service)

    def check(self) -> None:
        """Restart services that have ended, kill those that have hung, and notice those that have begun to answer.

        Raises:
            MalleTrainError: a service that has never answered ends again and again.
        """
        now = self._monotonic()
        seconds, self._looked = now - self._looked, now
        for service in self.services:
            if service.process is None:
                service.start_in -= seconds
                if service.start_in <= 0:
                    self._launch(service)
            elif service.process.poll() is not None:
                self._handle_end(service)
            else:
                self._listen(service, service.process, now, seconds)
        if not self._announced and all(service.served for service in self.services):
            self._announced = True
            self._all_serve()
            for service in self.services:
                typer.echo(f"{service.name:<12} {self._settings.addresses.of(service.name)}")
            typer.echo(f"state and logs in {self._settings.state_dir}; stop with Ctrl-C")
            if has_terminal() and find_spec("bokeh") is not None:
                config = ["--config", str(self._config)] if self._config is not None else []
                typer.echo(
                    f"pages in a browser, with a link to them: {shlex.join(['malletrain', 'dashboard', *config])}"
                )

    def _listen(self, service: ServiceProcess, process: ChildProcess, now: float, seconds: float) -> None:
        """Take in whether a service answers, and kill it if it has not for too long; not before all have once."""
        answer = service.questions.look(now, served=service.served)
        if not service.served:
            if answer is HealthAnswer.SERVING:
                service.served, service.failures = True, 0
                return
            if not self._announced:
                return
        if answer is HealthAnswer.SERVING and now - service.started >= _STEADY_SECONDS:
            service.backoff.succeed()
        if answer is HealthAnswer.SERVING and now - service.started >= _SOUND_SECONDS:
            service.hang_backoff.succeed()
        before, service.activity = service.activity, activity_of(process.pid)
        busy = service.activity is not None and service.activity.is_busy(before)
        service.silence = service.silence.after_turn(seconds, answer, busy=busy)
        limit = self._settings.hang_seconds
        if (
            limit
            and service.silence.is_too_long(limit + (0.0 if service.served else _BOOT_SECONDS))
            and not service.hung
        ):
            state = "?" if service.activity is None else service.activity.state
            service.hung = f"no answer to {service.silence.unanswered} health checks in a row, process state {state}"
            typer.echo(f"{service.name} has hung ({service.hung}): killing process {process.pid}", err=True)
            process.kill()

    def rotate_logs(self) -> None:
        """Rotate logs that are too large, and say so once if that is not possible."""
        for service in self.services:
            try:
                self._rotation.apply(self._log_path(service))
            except OSError as error:
                if service.name not in self._unrotated:
                    typer.echo(f"the log of {service.name} can't be rotated: {error}", err=True)
                self._unrotated.add(service.name)

    def _launch(self, service: ServiceProcess) -> None:
        # Without the working directory among the folders of modules: what lies there may be anybody's.
        command = [sys.executable, "-P", "-m", "malletrain.cli.main"]
        command += ["serve", service.name, "--parent", str(os.getpid())]
        if self._config is not None:
            command += ["--config", str(self._config)]
        path = self._log_path(service)
        make_private_folder(path.parent)
        try:
            with open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as log:
                service.process = self._forks.start(command, log.fileno())
        except OSError as error:  # the machine may have no room for another task now
            service.start_in = service.backoff.fail()
            typer.echo(f"{service.name} can't be started ({error}); again in {service.start_in:g} s", err=True)
            return
        service.served, service.hung = False, ""
        service.silence, service.activity = Silence(), None
        service.started = self._monotonic()
        service.questions.close()

    def _handle_end(self, service: ServiceProcess) -> None:
        assert service.process is not None
        code = service.process.returncode
        service.process = None
        service.failures += 1
        why = "" if self._announced or service.hung else f": {last_line(self._log_path(service))}"
        service.start_in = service.hang_backoff.fail() if service.hung else service.backoff.fail()
        typer.echo(f"{service.name} ended with {code}; starting it again in {service.start_in:g} s{why}", err=True)
        if service.hung:
            return
        if not self._announced and (code == _WRONG_USE or service.failures >= _TRIES_BEFORE_FIRST_SERVING):
            raise MalleTrainError(f"{service.name} does not start: {last_line(self._log_path(service))}")

    def _log_path(self, service: ServiceProcess) -> Path:
        return self._settings.state_dir / "logs" / f"{service.name}.log"

    def stop(self, ending: AwaitedSignals) -> None:
        """Ask every service to end, and kill those that do not in time.

        JobManager has as long as a job may take for its last checkpoint. The Scavenger ends after it: it gives the
        nodes back.

        Args:
            ending: Services that have not ended are killed if there is one once people were told what is waited for.
        """
        running = {service.name: service.process for service in self.services if service.process is not None}
        last = running.pop("scavenger", None)
        section = self._settings.job_manager
        saving = section.max_stop_grace_seconds if section.stop_jobs_on_exit else 0.0
        _end(running.values(), _STOP_SECONDS + saving, ending)
        if last is not None:
            _end([last], _STOP_SECONDS, ending)
        for service in self.services:
            service.questions.close()


def _end(processes: Collection[ChildProcess], seconds: float, ending: AwaitedSignals) -> None:
    for process in processes:
        process.terminate()
    begin, told = time.monotonic(), False
    while any(process.poll() is None for process in processes) and time.monotonic() - begin < seconds:
        # Before people are told, it is the same Ctrl-C by another way, say from a terminal and from a parent.
        if ending.wait(_FIRST_POLL_SECONDS) and told:
            break
        if not told and time.monotonic() - begin > _TELL_SECONDS:
            told = True
            typer.echo("waiting for jobs to save; press Ctrl-C again to end without", err=True)
    for process in processes:
        if process.poll() is None:
            process.kill()
            with suppress(TimeoutError):  # the kernel may hold it for longer
                process.wait(_KILL_SECONDS)
