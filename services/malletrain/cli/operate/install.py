"""`malletrain install systemd`: writes the units that run the services under systemd."""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from malletrain.cli.shared.settings import load
from malletrain.common.files import write_atomically
from malletrain.runtime.errors import InvalidInputError, MalleTrainError

install_app = typer.Typer(help="Files by which other programs run MalleTrain.", no_args_is_help=True)

_USER = re.compile(r"[a-z_][a-z0-9_-]{0,20}\Z")
"""The dashboard's account has a longer name, and none may have more than 31 characters."""
_PATH = re.compile(r"/[A-Za-z0-9/._+-]+\Z")
"""Paths that mean the same in every file of systemd, without quotes."""
HIDDEN_FOLDERS = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")
_UNITS = Path("systemd/system")
_OTHERS = ("sysusers.d", "tmpfiles.d")
"""Folders of templates that are no units."""


@install_app.callback()
def _several() -> None:
    """Keep `systemd` a name of its own, however many there are."""


@install_app.command()
def systemd(
    prefix: Annotated[Path, typer.Option(help="Where bin/malletrain is; by default this environment.")] = Path(
        sys.prefix
    ),
    user: Annotated[str, typer.Option(help="Account that runs the services.")] = "malletrain",
    config: Annotated[Path, typer.Option(help="TOML file of the services, with their state_dir.")] = Path(
        "/etc/malletrain/malletrain.toml"
    ),
    to: Annotated[Path, typer.Option(help="Folder of the machine's configuration.")] = Path("/etc"),
    force: Annotated[bool, typer.Option("--force", help="Replace files that differ.")] = False,
) -> None:
    """Write units for the five services, their target, the dashboard and the accounts; start nothing."""
    installation = SystemdInstallation(prefix, user, config, state_folder(config))
    written = write_files(to, render(template_folder(), installation), force=force)
    for path in written:
        typer.echo(f"wrote {path}")
    typer.echo("next: systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload", err=True)
    typer.echo("then: systemctl enable --now malletrain.target", err=True)
    typer.echo("and, with malletrain[dashboard]: systemctl enable --now malletrain-dashboard", err=True)


@dataclass(frozen=True)
class SystemdInstallation:
    """What the units name."""

    prefix: Path
    user: str
    config: Path
    state: Path

    def __post_init__(self) -> None:
        """Check what is named.

        Raises:
            InvalidInputError: a value can't stand in a unit, or the command is not there.
        """
        if not _USER.match(self.user):
            raise InvalidInputError("--user", "at most 21 lower-case letters, digits, - and _", self.user)
        for field, path in (("--prefix", self.prefix), ("--config", self.config), ("state_dir", self.state)):
            if not _PATH.match(str(path)) or ".." in path.parts:
                raise InvalidInputError(field, "an absolute path of letters, digits and . _ + -", str(path))
            if any(PurePosixPath(path).is_relative_to(hidden) for hidden in HIDDEN_FOLDERS):
                raise InvalidInputError(
                    field,
                    f"a path outside {', '.join(HIDDEN_FOLDERS)}: the units hide these from the services",
                    str(path),
                )
        if not (self.prefix / "bin/malletrain").is_file():
            raise InvalidInputError("--prefix", "a folder with bin/malletrain", str(self.prefix))

    def values(self) -> dict[str, str]:
        """What takes the place of each name between @ signs."""
        return {
            "@PREFIX@": str(self.prefix),
            "@USER@": self.user,
            "@CONFIG@": str(self.config),
            "@STATE@": str(self.state),
        }


def state_folder(config: Path) -> Path:
    """The state folder that a TOML file names.

    Raises:
        InvalidInputError: the file can't be used, or does not name one.
    """
    load(config)
    try:
        named = tomllib.loads(config.read_text(encoding="utf-8")).get("state_dir")
    except OSError as error:
        raise InvalidInputError("--config", f"a readable TOML file ({error.strerror})", str(config)) from error
    if not isinstance(named, str):
        raise InvalidInputError("state_dir", f"a folder, named in {config}")
    return Path(named)


def template_folder() -> Path:
    """Folder of the templates, in a checkout or in an installed package.

    Raises:
        MalleTrainError: there is none.
    """
    candidates = (Path(__file__).parents[4] / "deploy/systemd", Path(__file__).parent / "systemd_units")
    for candidate in candidates:
        if (candidate / "malletrain.target").is_file():
            return candidate
    raise MalleTrainError(f"the templates of the units are missing: looked in {' and '.join(map(str, candidates))}")


def render(templates: Path, installation: SystemdInstallation) -> dict[Path, str]:
    """The files with their contents, by their path below the folder of the machine's configuration."""
    rendered = {}
    for template in sorted(path for path in templates.rglob("*") if path.is_file()):
        text = template.read_text(encoding="utf-8")
        for name, value in installation.values().items():
            text = text.replace(name, value)
        below = template.relative_to(templates)
        rendered[below if below.parts[0] in _OTHERS else _UNITS / below] = text
    return rendered


def write_files(folder: Path, files: dict[Path, str], *, force: bool) -> list[Path]:
    """Write files; returns those that were not there as they should be.

    Raises:
        MalleTrainError: some differ and may not be replaced, in which case none is written; or they can't be written.
    """
    try:
        present = {path: _content(folder / path) for path in files}
        differing = [str(folder / path) for path, text in files.items() if present[path] not in (None, text)]
        if differing and not force:
            raise MalleTrainError(f"{', '.join(differing)}: there, and different; --force replaces what is there")
        changed = [path for path, text in files.items() if present[path] != text]
        for path in changed:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / path, files[path], mode=0o644)
    except OSError as error:
        raise MalleTrainError(f"can't write to {folder}: {error}") from error
    return [folder / path for path in changed]


def _content(path: Path) -> str | None:
    """Content of a file; None if there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
