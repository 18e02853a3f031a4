"""What a caller has to know of an installation, from its file of settings: needs the base install only.

The services check the whole file (`malletrain.runtime.config`). Here only those settings are read by which they are
reached.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from malletrain.common.environment import PREFIX
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.peer import Authorities, Peer
from malletrain.runtime.settings_file import (
    AUTHORITY_FILE,
    DEFAULT_ADDRESSES,
    default_state_folder,
    place_in_words,
    settings_file,
)

if TYPE_CHECKING:
    from malletrain.runtime.access.munge import MungeSettings

_SERVER_NAMES = ("auto", "role", "host")
_MUNGE = ("auto", "on", "off")
KNOWN = {
    "": (
        *("state_dir", "database_url", "database_password_file", "log_level", "log_mib", "log_copies", "log_stalls_ms"),
        *("hang_seconds", "validate_state", "addresses", "access", "tls", "metrics", "tracing", "limits"),
        *("scavenger", "allocator", "job_manager", "monitor", "profiler"),
    ),
    "addresses": (*DEFAULT_ADDRESSES, "monitor_for_nodes"),
    "tls": ("certificate_file", "key_file", "authority_file", "server_name", "lifespan_seconds"),
}
"""All settings of these sections, as `malletrain.runtime.config` has them: a misspelled one would have no effect."""


class InstallationView(Protocol):
    """An installation as callers see it: `CallerSettings`, or the settings of the services."""

    @property
    def state_dir(self) -> Path:
        """State folder of the installation."""

    @property
    def own_authority_file(self) -> Path:
        """Certificate of its own CA."""

    @property
    def access(self) -> MungeSettings:
        """How callers prove who they are."""

    @property
    def source(self) -> Path | None:
        """The file of settings that this comes from; None: there was none."""

    def peer(self, service: str) -> Peer:
        """One of its services."""


@dataclass(frozen=True)
class CallerMunge:
    """Whether and by which commands MUNGE is used.

    Attributes:
        munge: `auto`, `on` or `off`.
        munge_path: Folder of its commands; empty: as PATH says.
        munge_socket: Socket of munged; empty: MUNGE's default.
    """

    munge: str = "auto"
    munge_path: str = ""
    munge_socket: str = ""


@dataclass(frozen=True)
class CallerSettings:
    """Addresses of an installation's services, and how a caller verifies them.

    Attributes:
        state_dir: Its state folder.
        authorities: By what its services are known.
        addresses: HOST:PORT of each service.
        access: How callers prove who they are.
        source: The file that this comes from; None: there was none.
    """

    state_dir: Path
    authorities: Authorities
    addresses: Mapping[str, str] = field(default_factory=lambda: dict(DEFAULT_ADDRESSES))
    access: CallerMunge = CallerMunge()
    source: Path | None = None

    @property
    def own_authority_file(self) -> Path:
        """Certificate of the installation's own CA."""
        return self.authorities.own_file

    def peer(self, service: str) -> Peer:
        """One of its services."""
        return self.authorities.peer(service, self.addresses[service])


def caller_settings(
    config: Path | None = None, state_dir: Path | None = None, environment: Mapping[str, str] = os.environ
) -> CallerSettings:
    """Read where the services are: from arguments, else `MALLETRAIN_*` variables, else a TOML file, else the defaults.

    Args:
        config: The TOML file; None: as `settings_file` finds one.
        state_dir: The state folder; None: as variables and file say. Where one is named and has a malletrain.toml, and
            no file is named, that is the file.
        environment: Variables of this process.

    Raises:
        InvalidInputError: the file or a value can't be used; the error names the setting.
    """
    if config is None and state_dir is not None:
        beside = state_dir / "malletrain.toml"
        file = settings_file(beside) if beside.is_file() else None
    else:
        file = settings_file(config)
    text = _read(file) if file is not None else ""
    tree = _parse(text, file)
    read = _Reader(tree, environment, text, file)
    read.refuse_unknown_keys()
    folder = state_dir or _path(read.text("state_dir", "")) or default_state_folder()
    addresses = {name: read.address(name, usual) for name, usual in DEFAULT_ADDRESSES.items()}
    has_certificate = bool(read.text("tls.certificate_file", ""))
    server_name = read.choice("tls.server_name", _SERVER_NAMES)
    authorities = Authorities(
        own_file=folder / AUTHORITY_FILE,
        site_file=_path(read.text("tls.authority_file", "")),
        has_site_certificate=has_certificate,
        expects_host=server_name == "host" or (server_name == "auto" and has_certificate),
    )
    munge = CallerMunge(
        read.choice("access.munge", _MUNGE), read.text("access.munge_path", ""), read.text("access.munge_socket", "")
    )
    return CallerSettings(folder, authorities, addresses, munge, file)


class _Reader:
    """Values of settings by their paths, such as `tls.server_name`."""

    def __init__(
        self, tree: Mapping[str, Any], environment: Mapping[str, str], text: str = "", file: Path | None = None
    ) -> None:
        """
        Args:
            tree: What the file says.
            environment: Variables of this process.
            text: The file, for what errors say.
            file: Where it is.
        """
        self._tree = tree
        self._environment = {name.upper(): value for name, value in environment.items()}
        self._text = text
        self._file = file

    def refuse_unknown_keys(self) -> None:
        """Refuse what the file misspells of what is read here, and sections that there are not."""
        for section, known in KNOWN.items():
            table = self._tree.get(section, {}) if section else self._tree
            for name in table if isinstance(table, dict) else ():
                if name not in known:
                    like = difflib.get_close_matches(name, known, 1)
                    path = f"{section}.{name}" if section else name
                    raise self._refusal(path, "a known key" + (f", such as {like[0]}" if like else ""), table[name])

    def _refusal(self, path: str, expected: str, got: object) -> InvalidInputError:
        """An error that says where the value stands."""
        where = place_in_words(self._environment, PREFIX, path.split("."), self._file, self._text)
        return InvalidInputError(path, f"{expected} ({where})" if where else expected, got)

    def text(self, path: str, usual: str) -> str:
        variable = f"{PREFIX}{path.replace('.', '__')}".upper()
        if variable in self._environment:
            return self._environment[variable]
        value: Any = self._tree
        for name in path.split("."):
            if not isinstance(value, dict):
                raise self._refusal(path.rpartition(".")[0], "a table", value)
            if name not in value:
                return usual
            value = value[name]
        if not isinstance(value, str):
            raise self._refusal(path, "a text", value)
        return value

    def choice(self, path: str, choices: tuple[str, ...]) -> str:
        chosen = self.text(path, choices[0])
        if chosen not in choices:
            raise self._refusal(path, f"one of {', '.join(choices)}", chosen)
        return chosen

    def address(self, service: str, usual: str) -> str:
        path = f"addresses.{service}"
        address = self.text(path, usual)
        host, _, port = address.rpartition(":")
        if not host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
            raise self._refusal(path, "HOST:PORT", address)
        return address


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError(str(file), f"TOML ({error})") from None
    except OSError as error:
        raise InvalidInputError(str(file), f"a readable TOML file ({error.strerror})") from None


def _parse(text: str, file: Path | None) -> dict[str, Any]:
    if not text:
        return {}
    import tomllib  # not everybody has a file

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInputError(str(file), f"TOML ({error})") from None


def _path(text: str) -> Path | None:
    return Path(text) if text else None
