"""Options of jobs as keyword arguments: those of `malletrain submit`, typed, and checked before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import TypedDict

from malletrain.api.errors import in_python
from malletrain.api.job import Job
from malletrain.caller.job_array import ArrayRequest, array_specs, checked_array
from malletrain.caller.job_request import JobRequest, job_spec
from malletrain.caller.option_values import checked_command, checked_options
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import resources_pb2


class JobOptions(TypedDict, total=False):
    """Options of a job; what is not named is as `malletrain submit` has it by default.

    Attributes:
        name: Name for people; by default the script's.
        min_nodes: Smallest scale in nodes.
        max_nodes: Largest scale in nodes; by default 8, and 1 for the backend `command`.
        permitted: Permitted scales in nodes.
        slots: Worker processes per node; 0: one for each GPU, or 1.
        nodes_per_replica: Nodes that one copy of the model is divided among: its scale is whole replicas.
        curve: Samples per second by number of nodes, e.g. `{1: 100, 2: 190}`.
        scale_up: Stall of a growth in seconds.
        scale_down: Stall of a shrink in seconds.
        backend: `horovod`, `torchrun` or `command`; by default what the script shows.
        weight: Priority weight, above 0.
        value: What its speed is worth: `linear`, `diminishing=0.5`, `points=1:1,4:3`, `deadline=24h` or `goodput`.
        target_samples: Samples after which it is complete.
        max_restarts: Restarts after failures before it is FAILED.
        profile: `auto`, `always` or `never`: whether its scaling curve is measured on purpose.
        family: Jobs of one family share scaling curve and rescale costs.
        project: Project that its usage is accounted to.
        gpu: Kind of GPU that each of its nodes must have, e.g. `a100`.
        gpu_memory: Least memory of each GPU, e.g. `40G`.
        gpus: Least number of GPUs of each node.
        cores: Least number of cores of each node.
        memory: Least memory of each node, e.g. `256G`.
        constraint: Features that each node must have, e.g. `ib&big`.
        pool: Pool or partition that its nodes must be of.
        exclude: Names of nodes that it must not have.
        topology: `prefer`: nodes near each other; `require`, `require=2`: of one group; `require-replica`: each
            replica's of one group; `none`: any.
        burst_buffer: Burst buffer that it holds until its end, e.g. `2TB`.
        cold: Whether each worker is started as a new interpreter.
        env: Variables of the workers.
        workdir: Folder that the workers start in; by default the present one.
        start_limit: Longest start in seconds.
        step_limit: Longest time in seconds from one batch to the next.
        evaluation_limit: Longest evaluation in seconds.
        save_limit: Longest save of a checkpoint in seconds.
        release_grace: Seconds to save and end on a node that is taken.
        leave_grace: Seconds to save and end before a start at another scale.
        after: Jobs that are to have ended, however, before it starts: jobs, or identifiers of jobs and arrays, or names
            of the caller's jobs.
        after_ok: Jobs that are to have completed; it is cancelled when one of them fails or is cancelled.
    """

    name: str
    min_nodes: int
    max_nodes: int | None
    permitted: Sequence[int]
    slots: int
    nodes_per_replica: int
    curve: Mapping[int, float]
    scale_up: float | None
    scale_down: float | None
    backend: str
    weight: float
    value: str
    target_samples: int
    max_restarts: int | None
    profile: str
    family: str
    project: str
    gpu: str
    gpu_memory: str | None
    gpus: int | None
    cores: int | None
    memory: str | None
    constraint: str
    pool: str
    exclude: Sequence[str]
    topology: str
    burst_buffer: str
    cold: bool
    env: Mapping[str, str]
    workdir: str | PathLike[str] | None
    start_limit: float
    step_limit: float
    evaluation_limit: float
    save_limit: float
    release_grace: float
    leave_grace: float
    after: str | Job | Sequence[str | Job]
    after_ok: str | Job | Sequence[str | Job]


def with_names(options: Mapping[str, object]) -> dict[str, object]:
    """The options with identifiers in place of the jobs that a job is to wait for."""
    resolved = dict(options)
    for name in ("after", "after_ok"):
        value = resolved.get(name)
        if isinstance(value, str | Job):
            value = [value]
        if isinstance(value, Sequence):
            resolved[name] = [entry.id if isinstance(entry, Job) else entry for entry in value]
    return resolved


def array_specs_of(
    command: Sequence[str], parameters: Mapping[str, Sequence[object]], at_once: int, options: Mapping[str, object]
) -> list[resources_pb2.JobSpec]:
    """The specifications of an array.

    Args:
        command: Program and arguments, with `{lr}` for the value of the parameter `lr`.
        parameters: Values of each parameter.
        at_once: Most of its jobs that take part in plans at the same time; 0: no limit of its own.
        options: As `JobOptions`.

    Raises:
        InvalidInputError: an argument is not as expected; the error names it.
    """
    if not isinstance(parameters, Mapping):
        raise InvalidInputError("parameters", 'a dictionary such as {"lr": [0.1, 0.01]}', parameters)
    for name, listed in parameters.items():
        if isinstance(listed, str) or not isinstance(listed, Iterable):
            raise InvalidInputError(f"parameters[{name!r}]", "a list of values", listed)
    words, values = checked_command(command), checked_options(with_names(options))
    texts = {str(name): [str(value) for value in listed] for name, listed in parameters.items()}
    try:
        return array_specs(JobRequest(command=words, **values), checked_array(ArrayRequest(texts, at_once)))
    except InvalidInputError as error:
        raise (error.at("parameters") if error.field == "--array" else in_python(error)) from None


def spec_of(command: Sequence[str], options: Mapping[str, object]) -> resources_pb2.JobSpec:
    """The specification of a job.

    Args:
        command: Program and arguments.
        options: As `JobOptions`.

    Raises:
        InvalidInputError: an argument is not as expected; the error names it.
    """
    words, values = checked_command(command), checked_options(with_names(options))
    try:
        return job_spec(JobRequest(command=words, **values))
    except InvalidInputError as error:
        raise in_python(error) from None
