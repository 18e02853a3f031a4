"""`malletrain serve NAME`: runs one service in this process."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from malletrain.caller.credentials import forget_token
from malletrain.cli.shared.configured import ConfigOption
from malletrain.cli.shared.settings import AllSettings, check_named_files, check_state_folder, load
from malletrain.common.addresses import is_loopback
from malletrain.common.files import make_state_folder
from malletrain.common.processes import lower_priority
from malletrain.common.tasks import lasting, start_task
from malletrain.runtime.access.installation import Installation, open_installation
from malletrain.runtime.access.token_file import ViewerFolder
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.logs import configure_logging, keep_refusals_apart, log_failure, refusal_file
from malletrain.runtime.metrics.process import metrics_of_process
from malletrain.runtime.process import Service, run_service
from malletrain.runtime.server import ServiceHost
from malletrain.runtime.stalls import short_collections, stalls_logged
from malletrain.runtime.tracing.spans import open_tracer
from malletrain.runtime.watchdog import BUSY_FACTOR, LoopWatchdog, watchdog_for

_AGAIN_SECONDS = 60.0


class ServiceName(StrEnum):
    """The five services."""

    SCAVENGER = "scavenger"
    MONITOR = "monitor"
    JOB_MANAGER = "job_manager"
    PROFILER = "profiler"
    ALLOCATOR = "allocator"


_NICENESS = {
    ServiceName.ALLOCATOR: 2,
    ServiceName.MONITOR: 10,
    ServiceName.PROFILER: 10,
}
"""By how much a service yields the processor to Scavenger and JobManager. The release of a node passes through these
two, and on a busy head node it must wait neither for a solve nor for what trainings report."""


def serve(
    name: Annotated[ServiceName, typer.Argument(help="Name of the service.")],
    config: ConfigOption = None,
    parent: Annotated[
        int | None, typer.Option(hidden=True, help="End when this process is not the parent any more.")
    ] = None,
) -> None:
    """Run one service in this process until SIGTERM."""
    settings = load(config)
    check_named_files(settings)
    make_state_folder(settings.state_dir)
    check_state_folder(settings.state_dir)
    configure_logging(name.value, settings.log_level)
    keep_refusals_apart(refusal_file(settings.state_dir, name.value))
    forget_token()
    if niceness := _NICENESS.get(name):
        os.nice(niceness)
        lower_priority(os.getpid(), niceness)  # that of its session, too, if it leads one, as a unit of systemd does
    # Only `up` asks; nobody else can be told by a process that is stopped, but systemd.
    watchdog = watchdog_for(os.environ, BUSY_FACTOR * settings.hang_seconds, asked=parent is not None)
    with stalls_logged(settings.log_stalls_ms / 1000):
        asyncio.run(_serve(name, settings, parent, config, watchdog))


async def _serve(
    name: ServiceName, settings: AllSettings, parent: int | None, config: Path | None, watchdog: LoopWatchdog
) -> None:
    installation = open_installation(settings, SystemClock())
    address = settings.addresses.of(name.value)
    owner = installation.owner_token()
    owner.renew()
    certificates = installation.certificates(name.value)
    certificates.renew()
    beside = [
        start_task(lasting(owner.keep_renewed(), "owner's token"), "owner's token"),
        start_task(lasting(certificates.keep_renewed(), "certificates"), "certificates"),
    ]
    if (viewer := installation.viewer_folder()) is not None:
        # A dashboard that can't be served is no reason for a service to end.
        beside.append(start_task(_keep_in_any_case(viewer), "viewer's folder"))
    if parent:
        beside.append(start_task(_end_with_parent(parent), "parent"))
    service = _factory(name, config)(settings, installation)
    credentials = installation.server_credentials(name.value)
    metrics = metrics_of_process(name.value, settings)
    tracer = open_tracer(name.value, settings.tracing)
    access = installation.interceptor(name.value)
    limits = settings.limits.for_reports() if name is ServiceName.MONITOR else settings.limits
    try:
        with short_collections():
            plain = name is ServiceName.MONITOR and settings.access.reports_without_tls and is_loopback(address)
            host = ServiceHost(address, access, limits, credentials, metrics, tracer, plain_reports=plain)
            await run_service(service, host, watchdog)
    finally:
        for task in beside:
            task.cancel()


async def _keep_in_any_case(viewer: ViewerFolder) -> None:
    while True:
        try:
            await viewer.keep_renewed()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
            log_failure(error)
        await asyncio.sleep(_AGAIN_SECONDS)


async def _end_with_parent(parent: int) -> None:
    """Send SIGTERM to this process when its parent has ended: no process would restart it then."""
    import signal

    while os.getppid() == parent:
        await asyncio.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


def import_services() -> None:
    """Import what the services need, and the command with which they begin."""
    import_module("malletrain.cli.main")
    for name in ServiceName:
        _factory(name, None)


def _factory(name: ServiceName, config: Path | None) -> Callable[[AllSettings, Installation], Service]:
    """Creates the service. Imports that service only: the libraries of the others cost memory and start-up time."""
    create = import_module(f"malletrain.{name.value}.service").create
    chosen = ["--config", str(config)] if config else []
    replays = [sys.executable, "-P", "-m", "malletrain.cli.operate.tuning_replays", *chosen]
    further = [replays] if name is ServiceName.ALLOCATOR else []

    def started(settings: AllSettings, installation: Installation) -> Service:
        # JobManager makes tokens and certificates, too; the others show a credential of their own.
        access = installation if name is ServiceName.JOB_MANAGER else installation.credential(name.value)
        service: Service = create(settings, getattr(settings, name.value), SystemClock(), access, *further)
        return service

    return started
