"""`malletrain pki`: shows the installation's certificates, renews them, and makes those of nodes."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from malletrain.cli.shared.configured import ConfigOption
from malletrain.cli.shared.output import JsonOption, print_json, print_table
from malletrain.cli.shared.settings import load
from malletrain.common.files import write_atomically
from malletrain.runtime.access.certificates import CertificateDescription, certificates_of
from malletrain.runtime.access.pki import issue_to_node, renew_certificate
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.node_names import check_node_name
from malletrain.tls.names import ROLES

pki_app = typer.Typer(help="Certificates of the installation.", no_args_is_help=True)

_DAY = 86400.0
_MAX_DAYS = 366
_RENEWABLE = tuple(role for role in ROLES if role != "agent")
"""Each agent has a certificate of its own. That which those of version 0.1 share is not renewed."""


@pki_app.command()
def show(as_json: Annotated[bool, JsonOption] = False, config: ConfigOption = None) -> None:
    """List the certificates that there are: role, lifespan, serial number, SHA-256 fingerprint and file; no keys."""
    settings = load(config)
    certificates = list(certificates_of(settings.state_dir, settings.tls.certificate_file))
    if as_json:
        print_json([_fields(entry) for entry in certificates])
        return
    now = time.time()
    rows = [
        (
            entry.role,
            _state(entry, now),
            _time(entry.not_before, "%Y-%m-%d %H:%M:%S"),
            _time(entry.not_after, "%Y-%m-%d %H:%M:%S"),
            entry.serial,
            entry.fingerprint,
            str(entry.path),
        )
        for entry in certificates
    ]
    print_table(
        ("role", "", "not before (UTC)", "not after (UTC)", "serial number", "SHA-256 fingerprint", "file"), rows
    )


@pki_app.command()
def authority(config: ConfigOption = None) -> None:
    """Print the path of the file by which callers know the services, for programs such as `grpcurl -cacert FILE`."""
    typer.echo(load(config).authority_file.resolve())


@pki_app.command()
def renew(
    roles: Annotated[
        list[str] | None, typer.Argument(help=f"Of {', '.join(_RENEWABLE)}; by default all there are.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Make new certificates at once. What is running shows them at new connections, and open ones go on."""
    settings = load(config)
    present = [entry.role for entry in certificates_of(settings.state_dir) if entry.role in _RENEWABLE]
    for role in roles or present:
        if role not in _RENEWABLE:
            raise InvalidInputError("role", f"one of {', '.join(_RENEWABLE)}", role)
        path = renew_certificate(settings.state_dir, role, SystemClock(), settings.tls.lifespan_seconds)
        typer.echo(f"renewed: {path}")
    if not roles and not present:
        typer.echo("there are no certificates yet", err=True)


@pki_app.command()
def node(
    name: Annotated[str, typer.Argument(help="Name of the node, as the scheduler calls it.")],
    file: Annotated[Path, typer.Argument(help="File to write, with mode 600. It holds the key: move it to that node.")],
    days: Annotated[
        float | None, typer.Option(min=0.001, max=_MAX_DAYS, help="Lifespan; by default `tls.lifespan_seconds`.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Make a certificate for an agent that you start by hand on a node. Those in placeholders have theirs already."""
    settings = load(config)
    check_node_name(name, "NODE")
    lifespan = settings.tls.lifespan_seconds if days is None else days * _DAY
    content = issue_to_node(settings.state_dir, name, None, SystemClock(), lifespan)
    try:
        write_atomically(file, content, mode=0o600)
    except OSError as error:
        raise InvalidInputError("FILE", f"a file that can be written ({error.strerror})", str(file)) from error
    typer.echo(f"written: {file}")


def _fields(entry: CertificateDescription) -> dict[str, str]:
    return {
        "role": entry.role,
        "serial": entry.serial,
        "notBefore": _time(entry.not_before),
        "notAfter": _time(entry.not_after),
        "fingerprint": entry.fingerprint,
        "path": str(entry.path),
    }


def _state(entry: CertificateDescription, now: float) -> str:
    if now >= entry.not_after:
        return "expired"
    return "ok" if now >= entry.not_before else "not valid yet"


def _time(seconds: float, form: str = "%Y-%m-%dT%H:%M:%SZ") -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(form)
