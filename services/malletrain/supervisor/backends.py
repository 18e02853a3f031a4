"""The launcher backends by name; only the one that is asked for is imported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from malletrain.supervisor.actor import Actor
from malletrain.supervisor.elastic_actor import ElasticActor
from malletrain.supervisor.launch import Launch
from malletrain.supervisor.restarting_actor import RestartingActor
from malletrain.supervisor.view import State

BACKENDS = ("horovod", "torchrun", "command")


class UnknownBackendError(Exception):
    """There is no backend of that name."""


def open_actor(launch: Launch, folder: Path, publish: Callable[[State], None], mark: str) -> Actor:
    """The actor for the backend that a launch names.

    Args:
        launch: The job's launch.
        folder: The job's folder.
        publish: Called with every new state.
        mark: Names this supervisor in the workers' environment.

    Raises:
        UnknownBackendError: there is none.
        ImportError: a package that it needs is missing.
    """
    if launch.backend == "horovod":
        from malletrain.supervisor.horovod_world import HorovodWorld

        return ElasticActor(launch, folder, publish, mark, HorovodWorld)
    if launch.backend == "torchrun":
        from malletrain.supervisor.torchrun_backend import TorchrunBackend

        return RestartingActor(launch, folder, publish, mark, TorchrunBackend(launch.job_id))
    if launch.backend == "command":
        from malletrain.supervisor.command_backend import CommandBackend

        return RestartingActor(launch, folder, publish, mark, CommandBackend(folder))
    raise UnknownBackendError(f"backend: expected one of {', '.join(BACKENDS)}, got {launch.backend!r}")
