"""The `malletrain` command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from malletrain.cli.call_error import ServiceCallError
from malletrain.cli.completion import complete_at_first_tab
from malletrain.common.version import VERSION
from malletrain.runtime.errors import InvalidInputError, MalleTrainError

_NAME = "malletrain"
_VERBS = {
    "up": "malletrain.cli.up",
    "serve": "malletrain.cli.serve",
    "health": "malletrain.cli.health",
    "check": "malletrain.cli.check.command",
    "submit": "malletrain.cli.submit",
    "jobs": "malletrain.cli.jobs",
    "job": "malletrain.cli.job",
    "logs": "malletrain.cli.logs",
    "cancel": "malletrain.cli.cancel",
    "nodes": "malletrain.cli.nodes",
    "top": "malletrain.cli.top.command",
    "drain": "malletrain.cli.drain",
    "resume": "malletrain.cli.drain",
    "plan": "malletrain.cli.plan",
    "explain": "malletrain.cli.explain",
    "profile": "malletrain.cli.profile",
    "curve": "malletrain.cli.curve",
    "solve": "malletrain.cli.solve",
    "replay": "malletrain.cli.replay",
    "tune": "malletrain.cli.tune",
    "reproduce": "malletrain.cli.reproduce",
    "batch": "malletrain.cli.batch",
    "advise": "malletrain.cli.advise",
    "dashboard": "malletrain.cli.dashboard",
    "doctor": "malletrain.cli.doctor",
    "shadow": "malletrain.cli.shadow",
    "token": "malletrain.cli.token",
    "backup": "malletrain.cli.backup",
    "restore": "malletrain.cli.restore",
    "demo": "malletrain.cli.demo.command",
}
"""In which module the function of each verb is that has the verb's name."""
_CALLING = frozenset(
    (
        "submit",
        "jobs",
        "job",
        "logs",
        "cancel",
        "nodes",
        "top",
        "drain",
        "resume",
        "plan",
        "explain",
        "profile",
        "curve",
        "token",
    )
)
"""Verbs that call services, and so have the option --config."""
_GROUPS = {
    "trace": "malletrain.cli.trace",
    "fleet": "malletrain.cli.fleet",
    "pki": "malletrain.cli.pki",
    "install": "malletrain.cli.install",
    "debug": "malletrain.cli.debug",
}
"""In which module the application `NAME_app` of each group of verbs is."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"malletrain {VERSION}")
        raise typer.Exit


def application(verb: str | None = None, *, only_names: bool = False) -> typer.Typer:
    """The command with all verbs, or with one of them alone, which starts sooner: only its module is imported.

    Args:
        verb: The verb; None: all.
        only_names: Whether nothing but the verbs' names is asked for: then no module is imported at all.
    """
    found = typer.Typer(
        name=_NAME,
        help="Trains neural networks on the nodes that a supercomputer's batch scheduler cannot fill.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    found.callback()(_root)
    if only_names:
        for name in (*_VERBS, *_GROUPS):
            found.command(name)(_nothing)
        return found
    for name, module in _VERBS.items():
        if verb in (None, name):
            function = getattr(import_module(module), name)
            found.command(name)(_configured(function) if name in _CALLING else function)
    for name, module in _GROUPS.items():
        if verb in (None, name):
            found.add_typer(getattr(import_module(module), f"{name}_app"), name=name)
    return found


def _nothing() -> None:  # without a docstring: shells would show it beside every verb
    return


def _configured(function: Callable[..., None]) -> Callable[..., None]:
    from malletrain.cli.configured import with_config  # it imports all settings

    return with_config(function)


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    del version


def _application(environment: Mapping[str, str]) -> typer.Typer:
    """The command with as many verbs as this run of it needs."""
    completing = f"_{_NAME.upper()}_COMPLETE" in environment
    # bash has the words in one variable, zsh in the other; both have the command itself first.
    line = environment.get("COMP_WORDS") or environment.get("_TYPER_COMPLETE_ARGS", "")
    words = line.split()[1:] if completing else sys.argv[1:]
    first = words[0] if words else ""
    known = first in _VERBS or first in _GROUPS
    if completing:
        complete = len(words) > 1 or line.endswith(" ")  # else this verb may be the begin of another
        return application(first) if known and complete else application(only_names=True)
    if first.startswith(("--install-completion", "--show-completion")):
        return application(only_names=True)
    return application(first if known or first == "--version" else None)


def run() -> None:
    """Run the command. Exit codes: 0 done, 1 failed, 2 wrong use."""
    try:
        _application(os.environ)(prog_name=_NAME)
    except InvalidInputError as error:
        _end(error, 2)
    except ServiceCallError as error:
        _end(error, 2 if error.wrong_use else 1)
    except MalleTrainError as error:
        _end(error, 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except SystemExit as end:
        if sys.argv[1:2] == ["--install-completion"] and not end.code:
            complete_at_first_tab(Path.home(), _NAME)
        raise
    except BrokenPipeError:
        # The reader of the output has ended, e.g. `malletrain jobs | head`.
        sys.stderr.close()
        sys.exit(1)


def _end(error: MalleTrainError, code: int) -> None:
    typer.echo(f"error: {error}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    run()
