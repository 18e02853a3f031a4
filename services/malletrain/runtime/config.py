"""Configuration: defaults that work, overridden by a TOML file and by `MALLETRAIN_*` variables."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Self, TypeVar

import pydantic
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from malletrain.common.addresses import is_loopback
from malletrain.common.environment import PREFIX
from malletrain.runtime.access.settings import AccessSettings
from malletrain.runtime.database.address import DatabaseAddress, check_database_url
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.limits import ServerLimits
from malletrain.runtime.metrics.settings import MetricsSettings
from malletrain.runtime.peer import Peer
from malletrain.runtime.tls_settings import TlsSettings
from malletrain.runtime.tracing.settings import TracingSettings

CONFIG_FILE = "malletrain.toml"
AUTHORITY_FILE = "ca.pem"
"""Name of the certificate in the state folder by which callers know the services."""
SERVICES = ("scavenger", "monitor", "job_manager", "profiler", "allocator")

SettingsT = TypeVar("SettingsT", bound="Settings")


class Addresses(BaseModel):
    """Where each service listens, as HOST:PORT. Off loopback it is reached over TLS only."""

    model_config = ConfigDict(extra="forbid")

    scavenger: str = Field(default="127.0.0.1:7701", description="Address of the Scavenger; off loopback with TLS.")
    allocator: str = Field(default="127.0.0.1:7702", description="Address of the Allocator; off loopback with TLS.")
    job_manager: str = Field(default="127.0.0.1:7703", description="Address of JobManager; off loopback with TLS.")
    monitor: str = Field(default="127.0.0.1:7704", description="Address of Monitor; off loopback with TLS.")
    profiler: str = Field(default="127.0.0.1:7705", description="Address of the Profiler; off loopback with TLS.")
    monitor_for_nodes: str = Field(
        default="",
        description="Second address of Monitor, for the agents of other nodes, which pass on what trainers report and "
        "show a certificate. May be any address of this machine; empty: no records from other nodes are accepted.",
    )

    @pydantic.field_validator("monitor_for_nodes")
    @classmethod
    def _anywhere(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if value and (not host or not port.isdigit() or not 0 < int(port) <= 65535):
            raise ValueError("expected HOST:PORT, or nothing")
        return value

    @pydantic.field_validator(*SERVICES)
    @classmethod
    def _one_address(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise ValueError("expected HOST:PORT")
        if host in ("0.0.0.0", "[::]", "*"):
            raise ValueError("expected one address of this machine, by which callers reach it")
        return value

    def of(self, service: str) -> str:
        """Address of a service by its name."""
        return str(getattr(self, service))

    @property
    def need_tls(self) -> bool:
        """Whether a service listens off loopback."""
        return not all(is_loopback(self.of(service)) for service in SERVICES)


class Settings(BaseSettings):
    """Settings that all services share."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", extra="ignore")

    state_dir: Path = Field(
        default_factory=lambda: Path.home() / ".local/state/malletrain",
        description="Folder of databases, job folders and logs.",
    )
    database_url: SecretStr = Field(
        default=SecretStr(""),
        description="PostgreSQL database of the services, as postgresql+psycopg://USER@HOST/DATABASE without a "
        "password; empty: SQLite files in the state folder.",
    )
    database_password_file: Path | None = Field(
        default=None, description="File whose first line is the password of the user in `database_url`."
    )
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$", description="Smallest level logged.")
    log_mib: int = Field(
        default=64, ge=1, le=65_536, description="Size at which `malletrain up` rotates the log of a service, in MiB."
    )
    log_copies: int = Field(
        default=4, ge=0, le=1000, description="Rotated logs of each service that are kept; older ones are deleted."
    )
    log_stalls_ms: float = Field(
        default=0.0,
        ge=0,
        le=60_000,
        description="What keeps the event loop of a service busy for longer than so many ms is logged; 0: nothing is.",
    )
    validate_state: bool = Field(
        default=False,
        description="Whether JobManager, Scavenger and Profiler check the invariants of their state after each change.",
    )
    addresses: Addresses = Field(default_factory=Addresses, description="Where each service listens.")
    access: AccessSettings = Field(default_factory=AccessSettings, description="Who may call what.")
    tls: TlsSettings = Field(default_factory=TlsSettings, description="Certificates of services off loopback.")
    metrics: MetricsSettings = Field(
        default_factory=MetricsSettings, description="Where the services serve metrics for Prometheus."
    )
    tracing: TracingSettings = Field(
        default_factory=TracingSettings, description="Where the services send what they trace."
    )
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

    @property
    def authority_file(self) -> Path:
        """Certificates of the CAs by which callers know the services."""
        return self.tls.authority_file or self.state_dir / AUTHORITY_FILE

    def peer(self, service: str) -> Peer:
        """A service, for those who call it."""
        return Peer(self.addresses.of(service), self.authority_file, None if self.tls.expects_host else service)

    @pydantic.field_validator("database_url")
    @classmethod
    def _postgresql(cls, value: SecretStr) -> SecretStr:
        return SecretStr(check_database_url(value.get_secret_value()))

    @pydantic.model_validator(mode="after")
    def _password_of_a_database(self) -> Self:
        if self.database_password_file is not None and not self.database_url.get_secret_value():
            raise ValueError("expected database_url beside database_password_file")
        return self

    def database(self, service: str) -> DatabaseAddress:
        """Where a service's own database is."""
        url = self.database_url.get_secret_value()
        return DatabaseAddress(service, self.state_dir, url, self.database_password_file)


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
        raise _refusal(model, error) from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidInputError(str(config_file or CONFIG_FILE), f"TOML ({error})") from error
    return loaded


def _refusal(model: type[Settings], error: pydantic.ValidationError) -> InvalidInputError:
    """The first wrong value. A secret is not repeated, nor is what came with it."""
    place, expected, got = first_fault(error)
    fields = model.model_fields
    secret = not place or (place[0] in fields and fields[str(place[0])].annotation is SecretStr)
    field = ".".join(map(str, place))
    return InvalidInputError(field or "settings", expected) if secret else InvalidInputError(field, expected, got)


_PLAIN = {
    "Extra inputs are not permitted": "a known key",
    "a valid tuple": 'a list, such as ["a", "b"]',
}


def first_fault(error: pydantic.ValidationError) -> tuple[tuple[int | str, ...], str, object]:
    """The place of the first wrong value, what was expected there, and what was got."""
    first: Any = error.errors()[0]
    if first["type"] == "missing":
        return first["loc"], "a value", "none"
    return first["loc"], _expectation(first["msg"]), first["input"]


def _expectation(message: str) -> str:
    for opening in ("Input should be ", "Value error, expected ", "Value error, "):
        message = message.removeprefix(opening)
    return _PLAIN.get(message, message)
