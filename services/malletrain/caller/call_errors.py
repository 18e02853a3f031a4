"""Errors of calls as exceptions of their kinds, for callers that go on after some of them."""

from __future__ import annotations

import re

import grpc

from malletrain.caller.settings import InstallationView
from malletrain.caller.stubs import explain
from malletrain.runtime.access.identity import PermissionDeniedError, UnauthenticatedError
from malletrain.runtime.errors import (
    InvalidInputError,
    LimitExceededError,
    MalleTrainError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
)

_KINDS: dict[grpc.StatusCode, type[MalleTrainError]] = {
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.FAILED_PRECONDITION: PreconditionError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: UnavailableError,
    grpc.StatusCode.CANCELLED: UnavailableError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: LimitExceededError,
}
_INPUT = re.compile(r"(?:specs\[\d+\]\.)?(?P<field>[^:]{1,256}): expected (?P<expected>.*)", re.DOTALL)


def exception_of(error: grpc.RpcError, settings: InstallationView | None = None) -> MalleTrainError:
    """The error of a call as an exception of its kind; of input it names the field.

    Args:
        error: How the call failed.
        settings: By which the services were called, for errors which mean that others were meant; None: unsaid.
    """
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.INVALID_ARGUMENT and (match := _INPUT.fullmatch(details)) is not None:
        return InvalidInputError(match["field"], match["expected"])
    explained = explain(error, settings)
    kind = _KINDS.get(code)
    return explained if kind is None else kind(str(explained))
