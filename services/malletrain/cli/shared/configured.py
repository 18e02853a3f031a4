"""The option --config of verbs that call services, and what is wrong with variables of the environment."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from malletrain.caller.credentials import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE
from malletrain.common import environment as names_of_jobs
from malletrain.common.environment import PREFIX

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="TOML file; by default ./malletrain.toml if it exists.")
]
_OTHERS = frozenset({TOKEN_VARIABLE, TOKEN_FILE_VARIABLE}) | {
    f"{PREFIX}{name}"
    # Of scripts under deploy, standby processes, and docker-compose.yml.
    for name in ("CACHE", "STANDBY", "STANDBY_ROOM", "CONFIG", "CONFIG_FILE", "HEAD_IMAGE", "TRAINER_IMAGE", "USER")
}


_chosen: ContextVar[Path | None] = ContextVar("config", default=None)


def chosen_file() -> Path | None:
    """The file of settings that `chosen_config` names; None: none, so that ./malletrain.toml is read if it exists."""
    return _chosen.get()


@contextmanager
def chosen_config(config_file: Path | None) -> Iterator[None]:
    """Have this file of settings read while the context lasts, where none is named; None: ./malletrain.toml."""
    before = _chosen.set(config_file)
    try:
        yield
    finally:
        _chosen.reset(before)


def with_config(command: Callable[..., None]) -> Callable[..., None]:
    """A verb with the option --config, a file of settings for what it calls, unless it has one."""
    hints = get_type_hints(command, include_extras=True)
    signature = inspect.signature(command)
    if "config" in hints:
        return command

    @functools.wraps(command)
    def run(*arguments: Any, config: Path | None = None, **options: Any) -> None:
        with chosen_config(config):
            command(*arguments, **options)

    known = [parameter.replace(annotation=hints[name]) for name, parameter in signature.parameters.items()]
    own = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ConfigOption)
    run.__annotations__ = hints | {"config": ConfigOption}
    run.__signature__ = signature.replace(parameters=[*known, own])  # type: ignore[attr-defined]
    return run


def unknown_variables(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Variables that look like settings and are none, by name."""
    from malletrain.cli.shared.settings import AllSettings  # it imports the settings of all services

    settings = {f"{PREFIX}{name}".upper() for name in AllSettings.model_fields}
    of_jobs = {value for value in vars(names_of_jobs).values() if isinstance(value, str)}
    known = settings | of_jobs | _OTHERS
    ours = (name for name in environment if name.upper().startswith(PREFIX))
    return sorted(name for name in ours if name.upper().partition("__")[0] not in known)


def warn_of_variables() -> None:
    """Say on standard error which variables look like settings and have no effect."""
    for name in unknown_variables():
        typer.echo(f"warning: {name} is no setting and has no effect", err=True)
