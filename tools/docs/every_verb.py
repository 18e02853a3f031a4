"""The command with all verbs, where Typer's own documentation writer finds it."""

from __future__ import annotations

from malletrain.cli.main import application

app = application()
