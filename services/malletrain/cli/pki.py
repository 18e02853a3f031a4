"""`malletrain pki`: shows the installation's certificates, and renews them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from malletrain.cli.output import JsonOption, print_json, print_table
from malletrain.cli.settings import load
from malletrain.runtime.access.certificates import AUTHORITY, SITE, CertificateDescription, certificates_of
from malletrain.runtime.access.pki import renew_certificate
from malletrain.runtime.clock import SystemClock
from malletrain.tls.names import ROLES

pki_app = typer.Typer(help="Certificates of the installation.", no_args_is_help=True)

_ConfigOption = typer.Option(help="TOML file; by default ./malletrain.toml if it exists.")


@pki_app.command()
def show(as_json: Annotated[bool, JsonOption] = False, config: Annotated[Path | None, _ConfigOption] = None) -> None:
    """List the certificates that there are: role, lifespan, serial number, SHA-256 fingerprint and file; no keys."""
    settings = load(config)
    found = list(certificates_of(settings.state_dir, settings.tls.certificate_file))
    if as_json:
        print_json([_fields(entry) for entry in found])
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
        for entry in found
    ]
    print_table(
        ("role", "", "not before (UTC)", "not after (UTC)", "serial number", "SHA-256 fingerprint", "file"), rows
    )


@pki_app.command()
def renew(
    roles: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(ROLES)}; by default all there are.")] = None,
    config: Annotated[Path | None, _ConfigOption] = None,
) -> None:
    """Make new certificates at once. What is running shows them at new connections, and open ones go on."""
    settings = load(config)
    present = [entry.role for entry in certificates_of(settings.state_dir) if entry.role not in (AUTHORITY, SITE)]
    for role in roles or present:
        path = renew_certificate(settings.state_dir, role, SystemClock(), settings.tls.lifespan_seconds)
        typer.echo(f"renewed: {path}")
    if not roles and not present:
        typer.echo("there are no certificates yet", err=True)


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
