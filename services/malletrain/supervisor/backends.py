"""The launcher backends by name; only the one that is asked for is imported."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TypeAlias

from malletrain.common.job_folder import SAVING_FOLDER, SHARDED_FOLDER
from malletrain.common.worker_process import warm_command
from malletrain.supervisor.backend import OpenBackend
from malletrain.supervisor.call_queue import CallQueue
from malletrain.supervisor.context import Context
from malletrain.supervisor.elastic_group import ElasticGroup
from malletrain.supervisor.event_loop import EventLoop
from malletrain.supervisor.peer_filter import PeerFilter
from malletrain.supervisor.rendezvous_config import RendezvousConfig
from malletrain.supervisor.restarting import RestartingBackend
from malletrain.supervisor.restarting_group import RestartingGroup
from malletrain.supervisor.view import State
from malletrain.supervisor.worker_group import WorkerGroup

BACKENDS = ("horovod", "torchrun", "command")

Later: TypeAlias = Callable[[Callable[[], None]], None]
"""Has something done in the main thread."""


class UnknownBackendError(Exception):
    """There is no backend of that name."""


def open_event_loop(context: Context) -> EventLoop:
    """The event loop of a job, with the backend that its launch names.

    Args:
        context: The job, and what its supervisor works with.

    Raises:
        UnknownBackendError: there is none.
        ImportError: a package that it needs is missing.
    """
    calls: CallQueue[State] = CallQueue()
    return EventLoop(context, _open_group(context, calls.put), calls)


def _open_group(context: Context, later: Later) -> WorkerGroup:
    launch = context.launch
    rendezvous = RendezvousConfig(launch.address, launch.interfaces, PeerFilter(context.agents.peer_addresses).admits)
    if launch.backend == "horovod":
        from malletrain.supervisor.horovod_backend import HorovodBackend

        return _elastic_group(
            context, later, lambda on_ready, on_registered: HorovodBackend(rendezvous, on_ready, on_registered)
        )
    if launch.backend == "torchrun":
        from malletrain.supervisor.torchrun_backend import TorchrunBackend

        return _restarting_group(context, TorchrunBackend(launch.job_id, rendezvous))
    if launch.backend == "command":
        from malletrain.supervisor.command_backend import CommandBackend

        return _restarting_group(context, CommandBackend(context.folder, launch.environment))
    raise UnknownBackendError(f"backend: expected one of {', '.join(BACKENDS)}, got {launch.backend!r}")


def _elastic_group(context: Context, later: Later, open_backend: OpenBackend) -> ElasticGroup:
    backend = open_backend(
        lambda slot: later(lambda: group.came_back(slot)), lambda slot: later(lambda: group.registered(slot))
    )
    pool = context.pool(backend.defaults(warm=warm_command(context.launch.command) is not None))
    group = ElasticGroup(pool, backend, context.launch.min_nodes)
    return group


def _restarting_group(context: Context, backend: RestartingBackend) -> RestartingGroup:
    saving, sharded = (context.folder / name for name in (SAVING_FOLDER, SHARDED_FOLDER))
    for marks in (saving, sharded):
        shutil.rmtree(marks, ignore_errors=True)
    trainers, following = (context.pool(backend.defaults(), warm=backend.warm) for _ in range(2))
    return RestartingGroup(trainers, following, backend, saving, sharded, context.launch.min_nodes)
