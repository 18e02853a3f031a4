"""Configuration: defaults that work, overridden by a TOML file and by `MALLETRAIN_*` variables."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import pydantic
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from malletrain.common.addresses import is_loopback
from malletrain.common.environment import PREFIX
from malletrain.runtime.access.settings import AccessSettings
from malletrain.runtime.database.address import DatabaseAddress, check_database_url
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.frozen_settings import FrozenSettings
from malletrain.runtime.limits import ServerLimits
from malletrain.runtime.peer import Authorities, Peer
from malletrain.runtime.settings_file import (
    AUTHORITY_FILE,
    DEFAULT_ADDRESSES,
    SERVICES,
    default_state_folder,
    nearest_key,
    place_in_words,
    settings_file,
)
from malletrain.runtime.tracing.settings import TracingSettings


class TlsSettings(FrozenSettings):
    """Certificates of services that do not listen on loopback."""

    certificate_file: Path | None = Field(
        default=None,
        description="The site's own certificate of the services, in PEM, followed by those that lead to its CA; none: "
        "the installation's CA makes one for each service.",
    )
    key_file: Path | None = Field(default=None, description="The private key of `certificate_file`, in PEM.")
    authority_file: Path | None = Field(
        default=None,
        description="Certificates of the CAs by which callers know the services, in PEM; none: `ca.pem` in the state "
        "folder, which the services write.",
    )
    server_name: Literal["auto", "role", "host"] = Field(
        default="auto",
        description="The name that callers expect in a service's certificate: that of its role, as in those of the "
        "installation's CA, or the host of its address; auto: the host if `certificate_file` is set.",
    )
    lifespan_seconds: float = Field(
        default=86_400.0,
        ge=60,
        le=366 * 86_400,
        description="Lifespan of certificates of the installation's CA. They are renewed once half of it is over.",
    )

    @pydantic.model_validator(mode="after")
    def _together(self) -> TlsSettings:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("expected both certificate_file and key_file, or neither")
        if self.certificate_file is not None and self.authority_file is None:
            raise ValueError("expected authority_file beside certificate_file: callers know the services by it")
        return self

    @property
    def expects_host(self) -> bool:
        """Whether callers expect the host of the address in a service's certificate, rather than its role."""
        return self.server_name == "host" or (self.server_name == "auto" and self.certificate_file is not None)


_SERVICES = ("scavenger", "allocator", "job_manager", "monitor", "profiler")
_WHERE = "serves metrics over HTTP, as HOST:PORT; empty: nowhere."


class MetricsSettings(FrozenSettings):
    """Addresses at which services serve metrics for Prometheus."""

    scavenger: str = Field(default="", description=f"Address at which the Scavenger {_WHERE}")
    allocator: str = Field(default="", description=f"Address at which the Allocator {_WHERE}")
    job_manager: str = Field(default="", description=f"Address at which JobManager {_WHERE}")
    monitor: str = Field(default="", description=f"Address at which Monitor {_WHERE}")
    profiler: str = Field(default="", description=f"Address at which the Profiler {_WHERE}")
    allow_remote: bool = Field(
        default=False,
        description="Whether these addresses may be off loopback. They are not encrypted and ask nobody who they are: "
        "whoever reaches them reads figures, and identifiers and owners of jobs.",
    )
    max_jobs: int = Field(
        default=100,
        ge=0,
        le=10_000,
        description="Most jobs with metrics of their own; the others count as one, `other`.",
    )

    @pydantic.field_validator(*_SERVICES)
    @classmethod
    def _address(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if value and (not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) <= 65535):
            raise ValueError("expected HOST:PORT, or nothing")
        return value

    @pydantic.model_validator(mode="after")
    def _loopback(self) -> MetricsSettings:
        for service in _SERVICES:
            address = self.of(service)
            if address and not self.allow_remote and not is_loopback(address):
                raise ValueError(
                    f"expected a loopback address in metrics.{service}, or metrics.allow_remote = true: metrics are "
                    "not encrypted, and name jobs and their owners"
                )
        return self

    def of(self, service: str) -> str:
        """Address of a service's metrics; empty: nowhere."""
        return str(getattr(self, service))


SettingsT = TypeVar("SettingsT", bound="Settings")


class Addresses(BaseModel):
    """Addresses at which services listen, as HOST:PORT. They are reached over TLS only."""

    model_config = ConfigDict(extra="forbid")

    scavenger: str = Field(default=DEFAULT_ADDRESSES["scavenger"], description="Address of the Scavenger.")
    allocator: str = Field(default=DEFAULT_ADDRESSES["allocator"], description="Address of the Allocator.")
    job_manager: str = Field(default=DEFAULT_ADDRESSES["job_manager"], description="Address of JobManager.")
    monitor: str = Field(default=DEFAULT_ADDRESSES["monitor"], description="Address of Monitor.")
    profiler: str = Field(default=DEFAULT_ADDRESSES["profiler"], description="Address of the Profiler.")
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


class Settings(BaseSettings):
    """Settings that all services share."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", extra="ignore")

    state_dir: Path = Field(
        default_factory=default_state_folder,
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
    hang_seconds: float = Field(
        default=12.0,
        ge=0,
        le=3600,
        description="`malletrain up` kills and restarts a service that has served and then answers no health check for "
        "so many seconds; five times as many while it computes or waits for a disk. 0: never.",
    )
    validate_state: bool = Field(
        default=False,
        description="Whether JobManager, Scavenger and Profiler check the invariants of their state after each change.",
    )
    addresses: Addresses = Field(default_factory=Addresses, description="Where each service listens.")
    access: AccessSettings = Field(default_factory=AccessSettings, description="Who may call what.")
    tls: TlsSettings = Field(default_factory=TlsSettings, description="Certificates of the services.")
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
    def own_authority_file(self) -> Path:
        """Certificate of the installation's own CA, which the services write for everybody to read."""
        return self.state_dir / AUTHORITY_FILE

    @property
    def monitor_as_nodes_see_it(self) -> str | None:
        """HOST:PORT at which agents reach Monitor; empty: they do not; None: the sections that say so are not read."""
        return None

    @property
    def authorities(self) -> Authorities:
        """What callers verify the services by."""
        tls = self.tls
        return Authorities(
            self.own_authority_file, tls.authority_file, tls.certificate_file is not None, tls.expects_host
        )

    @property
    def authority_file(self) -> Path:
        """Certificates of the CAs by which callers know the services."""
        return self.authorities.file

    @property
    def authority_files(self) -> tuple[Path, ...]:
        """Certificates of all CAs by which services are known here."""
        if self.tls.certificate_file is None:
            return (self.authority_file,)
        return (self.own_authority_file, self.authority_file)

    def shows_site_certificate(self, service: str) -> bool:
        """Whether a service proves itself by a certificate of the site: off loopback, where there is one."""
        return self.authorities.shows_site_certificate(self.addresses.of(service))

    def peer(self, service: str) -> Peer:
        """A service, for those who call it."""
        return self.authorities.peer(service, self.addresses.of(service))

    @pydantic.field_validator("database_url")
    @classmethod
    def _postgresql(cls, value: SecretStr) -> SecretStr:
        return SecretStr(check_database_url(value.get_secret_value()))

    @pydantic.model_validator(mode="after")
    def _password_of_a_database(self) -> Self:
        if self.database_password_file is not None and not self.database_url.get_secret_value():
            raise ValueError("expected database_url beside database_password_file")
        return self

    @property
    def source(self) -> Path | None:
        """The file that these settings come from; None: there was none."""
        file = self.model_config.get("toml_file")
        return file if isinstance(file, Path) else None

    def database(self, service: str) -> DatabaseAddress:
        """Location of a service's own database."""
        url = self.database_url.get_secret_value()
        return DatabaseAddress(service, self.state_dir, url, self.database_password_file)


def load_settings(model: type[SettingsT], config_file: Path | None = None) -> SettingsT:
    """Settings from the environment and a TOML file.

    It is the named one, or that of `CONFIG_VARIABLE`, or `malletrain.toml` of the working directory where there is one.

    Raises:
        InvalidInputError: a value can't be used, a key of a section is unknown, the file can't be read, or it is that
            of the working directory and others could have written it.
    """
    file = settings_file(config_file)
    config = SettingsConfigDict(toml_file=file)
    bound = type(model.__name__, (model,), {"model_config": config, "__module__": model.__module__})
    try:
        loaded: SettingsT = bound()
    except pydantic.ValidationError as error:
        raise _refusal(model, error, file) from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidInputError(str(file), f"TOML ({error})") from error
    return loaded


def _refusal(model: type[Settings], error: pydantic.ValidationError, file: Path | None) -> InvalidInputError:
    """The first wrong value, and where it stands. A secret is not repeated, nor is what came with it."""
    place, expected, got = first_fault(error)
    if error.errors()[0]["type"] == "extra_forbidden" and (meant := nearest_key(model, place)):
        expected = f"{expected}, such as {meant}"
    if where := _where(place, file):
        expected = f"{expected} ({where})"
    fields = model.model_fields
    secret = not place or (place[0] in fields and fields[str(place[0])].annotation is SecretStr)
    field = ".".join(map(str, place))
    return InvalidInputError(field or "settings", expected) if secret else InvalidInputError(field, expected, got)


def _where(place: tuple[int | str, ...], file: Path | None) -> str:
    """The variable, or the file and line, that a value comes from; empty: neither is known."""
    try:
        text = "" if file is None else file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        text = ""
    return place_in_words(os.environ, PREFIX, place, file, text)


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
