"""All settings: those that the processes share, and a section for each service."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from malletrain.allocator.settings import AllocatorSettings
from malletrain.cli.shared.configured import chosen_file
from malletrain.job_manager.settings import JobManagerSettings
from malletrain.monitor.settings import MonitorSettings
from malletrain.profiler.settings import ProfilerSettings
from malletrain.runtime.config import Settings, load_settings
from malletrain.scavenger.settings import ScavengerSettings


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
