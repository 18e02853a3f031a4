"""The launcher backends by name; only the one that is asked for is imported."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from malletrain.common.job_folder import LEAVE_FILE, SAVING_FOLDER, SHARDED_FOLDER
from malletrain.common.launch_advice import advise
from malletrain.common.launch_file import Launch
from malletrain.common.script_kind import ScriptKind
from malletrain.common.script_reading import read_script
from malletrain.common.worker_process import warm_command
from malletrain.supervisor.context import Context
from malletrain.supervisor.elastic.backend import OpenBackend
from malletrain.supervisor.elastic.group import ElasticGroup
from malletrain.supervisor.loop.call_queue import CallQueue
from malletrain.supervisor.loop.event_loop import EventLoop
from malletrain.supervisor.loop.view import State
from malletrain.supervisor.rendezvous.connection_filters import PeerFilter, RendezvousConfig
from malletrain.supervisor.restarting.backend import RestartingBackend
from malletrain.supervisor.restarting.group import RestartingGroup
from malletrain.supervisor.workers.worker_group import WorkerGroup


@dataclass(frozen=True)
class BackendChoice:
    """How a job's program is run.

    Attributes:
        launch: The launch, with the backend that is used.
        restarts: Whether the program is one of Horovod that is not elastic, so that it is restarted at every change.
        one_node: Whether it can't use another node, whatever it is given.
        note: What its submitter should know, in one sentence; empty: nothing.
    """

    launch: Launch
    restarts: bool
    one_node: bool
    note: str


def choose_backend(launch: Launch) -> BackendChoice:
    """Look at the program's files, as the job's owner, and choose how to run it."""
    paths = launch.environment.get("PATH"), launch.environment.get("PYTHONPATH", "")
    script = read_script(launch.command, Path(launch.working_directory), *paths)
    several = sum(launch.hosts.values()) > 1 or launch.max_nodes > 1
    advice = advise(script, launch.backend if launch.backend_named else "", several=several, scale_named=several)
    backend = advice.backend or launch.backend
    restarts = (backend, script.kind) == ("horovod", ScriptKind.HOROVOD)
    return BackendChoice(replace(launch, backend=backend), restarts, advice.one_node, advice.note)


BACKENDS = ("horovod", "torchrun", "command")

log = logging.getLogger(__name__)

Later: TypeAlias = Callable[[Callable[[], None]], None]
"""Has something done in the main thread."""


class UnknownBackendError(Exception):
    """There is no backend of that name."""


def open_event_loop(context: Context) -> EventLoop:
    """The event loop of a job, with the backend that its launch names, or that its program is made for.

    Args:
        context: The job, and what its supervisor works with.

    Raises:
        UnknownBackendError: there is none.
        ImportError: a package that it needs is missing.
    """
    calls: CallQueue[State] = CallQueue()
    choice = choose_backend(context.launch)
    log.info("backend %s", choice.launch.backend)
    context = replace(context, launch=choice.launch)
    if choice.note:
        context.tell(choice.note)
    group = _open_group(context, calls.put, restarts=choice.restarts)
    return EventLoop(context, group, calls, usable_hosts=int(choice.one_node))


def _open_group(context: Context, later: Later, *, restarts: bool) -> WorkerGroup:
    launch = context.launch
    rendezvous = RendezvousConfig(
        launch.address, launch.interfaces, PeerFilter(context.agents.peer_addresses).admits, launch.accepts_open_store
    )
    if launch.backend == "horovod" and restarts:
        from malletrain.supervisor.restarting.plain_horovod_backend import PlainHorovodBackend

        return _restarting_group(context, PlainHorovodBackend(rendezvous))
    if launch.backend == "horovod":
        from malletrain.supervisor.elastic.horovod_backend import HorovodBackend

        return _elastic_group(
            context, later, lambda on_ready, on_registered: HorovodBackend(rendezvous, on_ready, on_registered)
        )
    if launch.backend == "torchrun":
        from malletrain.supervisor.restarting.torchrun_backend import TorchrunBackend

        return _restarting_group(context, TorchrunBackend(launch.job_id, rendezvous, launch.limits))
    if launch.backend == "command":
        from malletrain.supervisor.restarting.backend import CommandBackend

        return _restarting_group(context, CommandBackend(context.folder, launch.environment))
    raise UnknownBackendError(f"backend: expected one of {', '.join(BACKENDS)}, got {launch.backend!r}")


def _elastic_group(context: Context, later: Later, open_backend: OpenBackend) -> ElasticGroup:
    backend = open_backend(
        lambda slot: later(lambda: group.came_back(slot)), lambda slot: later(lambda: group.registered(slot))
    )
    pool = context.pool(backend.defaults(warm=warm_command(context.launch.command) is not None))
    launch = context.launch
    group = ElasticGroup(pool, backend, launch.min_nodes, launch.limits, launch.restarts_left, context.tell)
    return group


def _restarting_group(context: Context, backend: RestartingBackend) -> RestartingGroup:
    saving, sharded = (context.folder / name for name in (SAVING_FOLDER, SHARDED_FOLDER))
    for marks in (saving, sharded):
        shutil.rmtree(marks, ignore_errors=True)
    (context.folder / LEAVE_FILE).unlink(missing_ok=True)  # of another supervisor's generations
    trainers, following = (context.pool(backend.defaults(), warm=backend.warm) for _ in range(2))
    launch = context.launch
    return RestartingGroup(
        trainers,
        following,
        backend,
        saving,
        sharded,
        launch.min_nodes,
        launch.nodes_per_replica,
        launch.fixed_replicas,
        launch.limits,
        launch.restarts_left,
        context.tell,
    )
