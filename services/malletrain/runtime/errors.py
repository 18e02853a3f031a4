"""Errors that services raise in their pure cores and turn into gRPC status codes at the edge."""

from __future__ import annotations

_NOTHING = object()


class MalleTrainError(Exception):
    """Base of all errors that are meant for a user's eyes."""


class InvalidInputError(MalleTrainError, ValueError):
    """Input that can't be used; becomes INVALID_ARGUMENT.

    Attributes:
        field: Path of the field (`jobs[2].min_nodes`) or place in a file (`trace.csv:17`).
        expected: What would have been right.
    """

    def __init__(self, field: str, expected: str, got: object = _NOTHING) -> None:
        self.field = field
        self.expected = expected
        ending = "" if got is _NOTHING else f", got {got!r}"
        super().__init__(f"{field}: expected {expected}{ending}")


class NotFoundError(MalleTrainError, LookupError):
    """Something that was asked for by name does not exist; becomes NOT_FOUND."""


class StalePlanError(MalleTrainError):
    """A plan does not fit the present; becomes FAILED_PRECONDITION."""


class UnavailableError(MalleTrainError):
    """A peer can't be reached now; becomes UNAVAILABLE."""
