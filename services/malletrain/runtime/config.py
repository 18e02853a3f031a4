"""Configuration: defaults that work, overridden by a TOML file and by `MALLETRAIN_*` variables."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TypeVar

import pydantic
from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from malletrain.common.environment import PREFIX
from malletrain.runtime.access.settings import AccessSettings
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.limits import ServerLimits

CONFIG_FILE = "malletrain.toml"
SERVICES = ("scavenger", "monitor", "job_manager", "profiler", "allocator")

SettingsT = TypeVar("SettingsT", bound="Settings")


class Addresses(BaseModel):
    """Where each service listens, as HOST:PORT. Services listen on loopback only: nothing is encrypted yet."""

    model_config = ConfigDict(extra="forbid")

    scavenger: str = Field(default="127.0.0.1:7701", description="Loopback address of the Scavenger.")
    allocator: str = Field(default="127.0.0.1:7702", description="Loopback address of the Allocator.")
    job_manager: str = Field(default="127.0.0.1:7703", description="Loopback address of JobManager.")
    monitor: str = Field(default="127.0.0.1:7704", description="Loopback address of Monitor.")
    profiler: str = Field(default="127.0.0.1:7705", description="Loopback address of the Profiler.")
    monitor_for_nodes: str = Field(
        default="",
        description="Second address of Monitor, for the agents of other nodes, which pass on what trainers report and "
        "show a certificate. May be any address of this machine; empty: no records from other nodes are accepted.",
    )
    scavenger_metrics: str = Field(
        default="",
        description="Address at which the Scavenger serves Prometheus metrics over HTTP; empty: nowhere.",
    )

    @pydantic.field_validator("monitor_for_nodes", "scavenger_metrics")
    @classmethod
    def _anywhere(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if value and (not host or not port.isdigit() or not 0 < int(port) <= 65535):
            raise ValueError("expected HOST:PORT, or nothing")
        return value

    @pydantic.field_validator(*SERVICES)
    @classmethod
    def _loopback(cls, value: str) -> str:
        host, separator, port = value.rpartition(":")
        if not separator or not port.isdigit() or int(port) > 65535:
            raise ValueError("expected HOST:PORT")
        if host not in ("127.0.0.1", "localhost", "[::1]"):
            raise ValueError("expected a loopback host (127.0.0.1, localhost or [::1]): off loopback needs TLS")
        return value

    def of(self, service: str) -> str:
        """Address of a service by its name."""
        return str(getattr(self, service))


class Settings(BaseSettings):
    """Settings that all services share."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", extra="ignore")

    state_dir: Path = Field(
        default_factory=lambda: Path.home() / ".local/state/malletrain",
        description="Folder of databases, job folders and logs.",
    )
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$", description="Smallest level logged.")
    validate_state: bool = Field(
        default=False,
        description="Whether JobManager, Scavenger and Profiler check the invariants of their state after each change.",
    )
    addresses: Addresses = Field(default_factory=Addresses, description="Where each service listens.")
    access: AccessSettings = Field(default_factory=AccessSettings, description="Who may call what.")
    limits: ServerLimits = Field(default_factory=ServerLimits, description="What services grant those who call them.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments take precedence over environment variables, and these over the TOML file."""
        del dotenv_settings, file_secret_settings
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    def database(self, service: str) -> str:
        """SQLAlchemy URL of a service's own database."""
        return f"sqlite:///{self.state_dir / (service + '.sqlite')}"


def load_settings(model: type[SettingsT], config_file: Path | None = None) -> SettingsT:
    """Settings from the environment and a TOML file (`malletrain.toml` in the working directory where it exists).

    Raises:
        InvalidInputError: a value can't be used, a key of a section is unknown, or the file can't be read.
    """
    if config_file is not None and not config_file.is_file():
        raise InvalidInputError("--config", "a readable TOML file", str(config_file))
    config = SettingsConfigDict(toml_file=config_file or Path(CONFIG_FILE))
    bound = type(model.__name__, (model,), {"model_config": config, "__module__": model.__module__})
    try:
        loaded: SettingsT = bound()
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise InvalidInputError(".".join(map(str, first["loc"])), _expected(first["msg"]), first["input"]) from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidInputError(str(config_file or CONFIG_FILE), f"TOML ({error})") from error
    return loaded


def _expected(message: str) -> str:
    """What was expected, from a message of pydantic."""
    for opening in ("Input should be ", "Value error, expected ", "Value error, "):
        message = message.removeprefix(opening)
    return {"Extra inputs are not permitted": "a known key"}.get(message, message)
