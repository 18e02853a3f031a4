"""What verbs that call services need of the settings: where the services are, and how they are known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from malletrain.runtime.config import Settings, load_settings


class CallerSettings(Settings):
    """The settings that all processes share. The services' own sections may be there, and are not looked into: what
    they allow stands in the services' modules, which take longer to import than a call takes."""

    model_config = SettingsConfigDict(extra="forbid")

    scavenger: dict[str, Any] = Field(default_factory=dict)
    allocator: dict[str, Any] = Field(default_factory=dict)
    job_manager: dict[str, Any] = Field(default_factory=dict)
    monitor: dict[str, Any] = Field(default_factory=dict)
    profiler: dict[str, Any] = Field(default_factory=dict)


_chosen: ContextVar[Path | None] = ContextVar("config", default=None)


def load_to_call() -> CallerSettings:
    """The settings by which services are called, from the environment and the TOML file.

    Raises:
        InvalidInputError: a value is invalid.
    """
    return load_settings(CallerSettings, chosen_file())


def chosen_file() -> Path | None:
    """The file that `chosen_config` names; None: none, so that ./malletrain.toml is read if it exists."""
    return _chosen.get()


@contextmanager
def chosen_config(config_file: Path | None) -> Iterator[None]:
    """Have this file of settings read while the context lasts, where none is named; None: ./malletrain.toml."""
    before = _chosen.set(config_file)
    try:
        yield
    finally:
        _chosen.reset(before)
