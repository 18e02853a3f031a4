"""Errors with a message for the user. `malletrain.runtime.interceptor` turns them into gRPC status codes."""

from __future__ import annotations

_NOTHING = object()


class MalleTrainError(Exception):
    """Base of all errors with a message for the user."""


class InvalidInputError(MalleTrainError, ValueError):
    """Input that can't be used; becomes INVALID_ARGUMENT.

    Attributes:
        field: Path of the field (`jobs[2].min_nodes`) or place in a file (`trace.csv:17`).
        expected: What is allowed.
    """

    def __init__(self, field: str, expected: str, got: object = _NOTHING) -> None:
        self.field = field
        self.expected = expected
        ending = "" if got is _NOTHING else f", got {got!r}"
        super().__init__(f"{field}: expected {expected}{ending}")


class NotFoundError(MalleTrainError, LookupError):
    """There is nothing with the name that was asked for; becomes NOT_FOUND."""


class StalePlanError(MalleTrainError):
    """A plan does not fit the present state; becomes FAILED_PRECONDITION."""


class UnavailableError(MalleTrainError):
    """A peer can't be reached now; becomes UNAVAILABLE."""


class InvariantError(MalleTrainError, AssertionError):
    """The state of a service contradicts itself: a defect of MalleTrain. Raised only where `validate_state` is set."""
