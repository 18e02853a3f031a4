"""The launcher backends by name; only the one that is asked for is imported."""

from __future__ import annotations

from malletrain.supervisor.actor import Actor, Context
from malletrain.supervisor.elastic_actor import ElasticActor
from malletrain.supervisor.restarting_actor import RestartingActor

BACKENDS = ("horovod", "torchrun", "command")


class UnknownBackendError(Exception):
    """There is no backend of that name."""


def open_actor(context: Context) -> Actor:
    """The actor for the backend that a launch names.

    Args:
        context: The job, and what there is to drive it by.

    Raises:
        UnknownBackendError: there is none.
        ImportError: a package that it needs is missing.
    """
    launch = context.launch
    if launch.backend == "horovod":
        from malletrain.supervisor.horovod_world import HorovodWorld

        place = launch.address, launch.interfaces
        return ElasticActor(context, lambda on_ready, on_registered: HorovodWorld(place, on_ready, on_registered))
    if launch.backend == "torchrun":
        from malletrain.supervisor.torchrun_backend import TorchrunBackend

        return RestartingActor(context, TorchrunBackend(launch.job_id, launch.address, launch.interfaces))
    if launch.backend == "command":
        from malletrain.supervisor.command_backend import CommandBackend

        return RestartingActor(context, CommandBackend(context.folder))
    raise UnknownBackendError(f"backend: expected one of {', '.join(BACKENDS)}, got {launch.backend!r}")
