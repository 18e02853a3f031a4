"""The launcher backends by name; only the one that is asked for is imported."""

from __future__ import annotations

from malletrain.supervisor.elastic_event_loop import ElasticEventLoop
from malletrain.supervisor.event_loop import Context, EventLoop
from malletrain.supervisor.restarting_event_loop import RestartingEventLoop

BACKENDS = ("horovod", "torchrun", "command")


class UnknownBackendError(Exception):
    """There is no backend of that name."""


def open_event_loop(context: Context) -> EventLoop:
    """The event loop for the backend that a launch names.

    Args:
        context: The job, and what there is to drive it by.

    Raises:
        UnknownBackendError: there is none.
        ImportError: a package that it needs is missing.
    """
    launch = context.launch
    if launch.backend == "horovod":
        from malletrain.supervisor.horovod_backend import HorovodBackend

        place = launch.address, launch.interfaces
        return ElasticEventLoop(context, lambda on_ready, on_registered: HorovodBackend(place, on_ready, on_registered))
    if launch.backend == "torchrun":
        from malletrain.supervisor.torchrun_backend import TorchrunBackend

        return RestartingEventLoop(context, TorchrunBackend(launch.job_id, launch.address, launch.interfaces))
    if launch.backend == "command":
        from malletrain.supervisor.command_backend import CommandBackend

        return RestartingEventLoop(context, CommandBackend(context.folder))
    raise UnknownBackendError(f"backend: expected one of {', '.join(BACKENDS)}, got {launch.backend!r}")
