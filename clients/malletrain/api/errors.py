"""Errors of the interface for Python. All are MalleTrainError; one of input names the field."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from malletrain.caller.stubs import ServiceCallError, exception_of
from malletrain.runtime.access.identity import PermissionDeniedError, UnauthenticatedError
from malletrain.runtime.errors import (
    InvalidInputError,
    LimitExceededError,
    MalleTrainError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
)

__all__ = [
    "InvalidInputError",
    "JobFailedError",
    "LimitExceededError",
    "MalleTrainError",
    "NotFoundError",
    "PermissionDeniedError",
    "PreconditionError",
    "ServiceCallError",
    "UnauthenticatedError",
    "UnavailableError",
    "as_exception",
    "in_python",
    "translate_errors",
]

_NAMES = {
    "min": "min_nodes",
    "max": "max_nodes",
    "permitted_nodes": "permitted",
    "slots_per_node": "slots",
    "scale_up_seconds": "scale_up",
    "scale_down_seconds": "scale_down",
    "working_directory": "workdir",
    "environment": "env",
    "burst_buffer_gb": "burst_buffer",
    "cold_start": "cold",
}
"""Arguments in Python by the names of options and of fields of a specification, where these differ."""


class JobFailedError(MalleTrainError):
    """A job has ended otherwise than hoped for.

    Attributes:
        job_id: The job.
        state: How it ended: FAILED or CANCELLED, or COMPLETED without a result.
        reason: Why, with the last lines of its log.
    """

    def __init__(self, job_id: str, state: str, reason: str) -> None:
        self.job_id = job_id
        self.state = state
        self.reason = reason
        super().__init__(f"{job_id} {state}: {reason}")


def as_exception(error: grpc.RpcError) -> MalleTrainError:
    """The error of a call, as this interface raises it."""
    exception = exception_of(error)
    return in_python(exception) if isinstance(exception, InvalidInputError) else exception


def in_python(error: InvalidInputError) -> InvalidInputError:
    """The same error by the name of the argument in Python, e.g. `gpu_memory` rather than `--gpu-memory`."""
    name = error.field
    if name.startswith("--"):
        name = name.removeprefix("--").replace("-", "_")
    first, dot, rest = name.removeprefix("dependencies.").partition(".")
    return error.at(_NAMES.get(first, first) + dot + rest)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise errors of calls in the block as this interface has them."""
    try:
        yield
    except grpc.RpcError as error:
        raise as_exception(error) from error
