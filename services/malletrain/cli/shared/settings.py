"""All settings: those that the processes share, a section for each service, and who may be able to write them.

That is the state folder with its databases, and, where root runs the services, files and programs that settings name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from malletrain.allocator.settings import AllocatorSettings
from malletrain.cli.shared.configured import chosen_file
from malletrain.common.trusted_files import distrust, entry_at, reason_for_distrust
from malletrain.job_manager.settings import JobManagerSettings
from malletrain.monitor.settings import MonitorSettings
from malletrain.profiler.settings import ProfilerSettings
from malletrain.runtime.config import Settings, load_settings
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.settings import ScavengerSettings
from malletrain.scavenger.sources.schedulers.settings import HoldSettings


class AllSettings(Settings):
    """Settings of the whole system: `MALLETRAIN_<SECTION>__<FIELD>`, or `[section]` in the TOML file."""

    # Services read only what they share: to them the sections of the others are extra. Here nothing may be.
    model_config = SettingsConfigDict(extra="forbid")

    scavenger: ScavengerSettings = Field(default_factory=ScavengerSettings)
    allocator: AllocatorSettings = Field(default_factory=AllocatorSettings)
    job_manager: JobManagerSettings = Field(default_factory=JobManagerSettings)
    monitor: MonitorSettings = Field(default_factory=MonitorSettings)
    profiler: ProfilerSettings = Field(default_factory=ProfilerSettings)

    @property
    def monitor_as_nodes_see_it(self) -> str:
        """HOST:PORT at which agents reach Monitor; empty: they do not."""
        port = self.addresses.monitor_for_nodes.rpartition(":")[2]
        return f"{self.job_manager.head_address}:{port}" if port else ""


def load(config_file: Path | None = None) -> AllSettings:
    """Read all settings from the environment and the TOML file.

    Args:
        config_file: The TOML file; None: that of `chosen_config`, else ./malletrain.toml if it exists.

    Raises:
        InvalidInputError: a value is invalid. The error names its path, e.g. `scavenger.speed`.
    """
    return load_settings(AllSettings, config_file or chosen_file())


def named_files(settings: AllSettings) -> Iterator[tuple[str, Path]]:
    """What the services execute or believe because settings name it, each with its setting. Not all need exist."""
    jobs, tls, tracing = settings.job_manager, settings.tls, settings.tracing
    notices, of_nodes = jobs.notifications, settings.scavenger.notifications
    files = {
        "database_password_file": settings.database_password_file,
        "tls.certificate_file": tls.certificate_file,
        "tls.key_file": tls.key_file,
        "tls.authority_file": tls.authority_file,
        "tracing.headers_file": tracing.headers_file,
        "tracing.authority_file": tracing.authority_file,
        "job_manager.notifications.webhook_file": notices.webhook_file,
        "scavenger.notifications.webhook_file": of_nodes.webhook_file,
    }
    yield from ((field, path) for field, path in files.items() if path is not None)
    if settings.access.munge != "off" and settings.access.munge_path:
        folder = Path(settings.access.munge_path)
        yield from (("access.munge_path", folder / name) for name in ("munge", "unmunge"))
    yield from _program("job_manager.trainer_python", jobs.trainer_python)
    if notices.command:
        yield from _program("job_manager.notifications.command", notices.command[0])
    if of_nodes.command:
        yield from _program("scavenger.notifications.command", of_nodes.command[0])
    yield from _of_schedulers(settings)


def _of_schedulers(settings: AllSettings) -> Iterator[tuple[str, Path]]:
    source, slurm, pbs = settings.scavenger.source, settings.scavenger.slurm, settings.scavenger.pbs
    if "slurm" in source:
        for name in ("sinfo", "squeue", "scontrol"):
            yield from _program(f"scavenger.slurm.{name}", getattr(slurm, name))
        yield from _of_placeholders("scavenger.slurm.hold", slurm.hold)
    if "pbs" in source:
        for name in ("pbsnodes", "qstat", "pbs_rstat"):
            yield from _program(f"scavenger.pbs.{name}", getattr(pbs, name))
        yield from _of_placeholders("scavenger.pbs.hold", pbs.hold)


def _of_placeholders(section: str, hold: HoldSettings) -> Iterator[tuple[str, Path]]:
    if not hold.queue:
        return
    # On the nodes' own disks there may be another file of this name, which can't be looked at from here.
    yield from _program(f"{section}.python", hold.python)
    if hold.ssh:
        yield from _program(f"{section}.ssh", hold.ssh[0])


def _program(field: str, name: str) -> Iterator[tuple[str, Path]]:
    if path := shutil.which(name):
        yield field, Path(path)


def distrusted_files(settings: AllSettings) -> Iterator[tuple[str, Path, str]]:
    """Setting, file and reason of each that others could have written; none unless this process is root's.

    Any other account runs what it has been told to run: software that another account of the site keeps, say.
    """
    if os.geteuid() != 0:
        return
    for field, path in named_files(settings):
        if reason := reason_for_distrust(path):
            yield field, path, reason


def check_named_files(settings: AllSettings) -> None:
    """Refuse settings by which somebody else decides what root runs or believes.

    Raises:
        InvalidInputError: others could have written a file that a setting names; the error says which, and who.
    """
    for field, path, reason in distrusted_files(settings):
        raise InvalidInputError(field, f"a file that only root can write: {reason}", str(path))


def state_folder_fault(state_dir: Path) -> str:
    """Other accounts that can change what is in the state folder; empty if there are none, or there is no folder.

    Only the folder and what lies directly in it is looked at. The folders above are for root to be strict with: others
    work in folders of a project, whose owner could replace theirs.
    """
    if not state_dir.is_dir():
        return ""
    if os.geteuid() == 0 and (reason := reason_for_distrust(state_dir)):
        return reason
    trusted = frozenset({0, os.geteuid()})
    places = [state_dir.resolve(), *sorted(state_dir.resolve().iterdir())]
    return distrust([entry for place in places if (entry := entry_at(place)) is not None], trusted)


def check_state_folder(state_dir: Path) -> None:
    """Refuse a state folder that is somebody else's, or that others can write: its databases say what is run.

    Raises:
        InvalidInputError: it is; the error says which entry it is about.
    """
    try:
        fault = state_folder_fault(state_dir)
    except OSError as error:
        raise InvalidInputError("state_dir", f"a folder that can be read ({error})", str(state_dir)) from error
    if fault:
        expected = f"a folder that only the account of the services (user id {os.geteuid()}) can write: {fault}"
        raise InvalidInputError("state_dir", expected, str(state_dir))
