"""What the command says beside its output."""

from __future__ import annotations

import typer


def tell(text: str) -> None:
    """Say something on standard error."""
    typer.echo(text, err=True)
