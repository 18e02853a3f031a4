"""What all supervisors are started with, from the settings of the installation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from malletrain.common.addresses import is_loopback
from malletrain.job_manager.settings import JobManagerSettings
from malletrain.runtime.config import Settings
from malletrain.tls.names import name_of


class MonitorAddress(NamedTuple):
    """The address to which trainers send their reports.

    Attributes:
        address: HOST:PORT of Monitor on this machine.
        for_nodes: HOST:PORT by which agents on other nodes reach it; empty if they can't.
        authorities: Files with the CA certificates by which it is known; none: it is not served with TLS, as by a test.
        name: Name in its certificate; empty: the host of its address.
    """

    address: str
    for_nodes: str = ""
    authorities: tuple[Path, ...] = ()
    name: str = ""


@dataclass(frozen=True)
class LaunchSettings:
    """What all supervisors are started with.

    Attributes:
        state_dir: State folder of the installation.
        jobs_dir: Folder of the jobs' folders.
        trainer_python: Interpreter of the training environment.
        monitor: Where reporters connect to.
        backend: Launcher backend of jobs that do not name one.
        address: Address of this machine as the nodes see it.
        interfaces: Network interfaces by which workers reach each other.
        standby_memory_bytes: Largest share of memory of the standby processes of JobManager together, and of that of
            each supervisor; 0: none is kept.
        keep_seconds: How long a supervisor whose nodes were all released stays, and waits for others; 0: it ends.
        forks_supervisors: Whether supervisors run as this process does, so that they can be forked, too.
        idle_report_seconds: For how long a job's processes must do nothing until its supervisor reports it.
        accepts_open_store: Whether torch's store may be served where other accounts of the machine can reach it.
    """

    state_dir: Path
    jobs_dir: Path
    trainer_python: str
    monitor: MonitorAddress
    backend: str = "horovod"
    address: str = "127.0.0.1"
    interfaces: tuple[str, ...] = ("lo",)
    standby_memory_bytes: int = 0
    keep_seconds: float = 0.0
    forks_supervisors: bool = False
    idle_report_seconds: float = 30.0
    accepts_open_store: bool = False


def launch_settings(settings: Settings, section: JobManagerSettings) -> LaunchSettings:
    """What JobManager starts supervisors with.

    Args:
        settings: Those that all services share.
        section: JobManager's own.
    """
    state_dir = settings.state_dir.resolve()
    return LaunchSettings(
        state_dir=state_dir,
        jobs_dir=section.jobs_dir or state_dir / "jobs",
        trainer_python=section.trainer_python,
        monitor=monitor_address(settings, section),
        backend=section.backend,
        address=section.head_address,
        interfaces=section.interfaces,
        standby_memory_bytes=section.standby_memory_mib << 20,
        keep_seconds=section.keep_supervisor_seconds,
        forks_supervisors=section.run_as == "service",
        idle_report_seconds=section.idle_report_seconds,
        accepts_open_store=section.accept_open_store,
    )


def monitor_address(settings: Settings, section: JobManagerSettings) -> MonitorAddress:
    """The address to which trainers report: without TLS on this machine where the settings permit that."""
    listening = settings.addresses.monitor_for_nodes
    port = listening.rpartition(":")[2]
    peer = settings.peer("monitor")
    for_nodes = f"{section.head_address}:{port}" if listening else ""
    if settings.access.reports_without_tls and is_loopback(peer.address):
        return MonitorAddress(peer.address, for_nodes)
    return MonitorAddress(
        peer.address,
        for_nodes,
        tuple(file.resolve() for file in settings.authority_files),
        "" if peer.role is None else name_of(peer.role),
    )
