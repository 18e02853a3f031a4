"""Errors with a message for the user. `malletrain.runtime.error_interceptor` turns them into gRPC status codes."""

from __future__ import annotations

_NOTHING = object()
_MAX_QUOTE_LENGTH = 200


def quote(value: object) -> str:
    """What was got, for an error: as in Python, and cut where it is long, since errors travel in small headers."""
    if isinstance(value, str | bytes) and len(value) > _MAX_QUOTE_LENGTH:
        return f"{value[:_MAX_QUOTE_LENGTH]!r}… (of {len(value)})"
    text = repr(value)
    return text if len(text) <= _MAX_QUOTE_LENGTH else f"{text[:_MAX_QUOTE_LENGTH]}… (of {len(text)} characters)"


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
        self._got = got
        ending = "" if got is _NOTHING else f", got {quote(got)}"
        super().__init__(f"{field}: expected {expected}{ending}")

    def at(self, field: str) -> InvalidInputError:
        """The error for another field, as a file calls it, say."""
        return InvalidInputError(field, self.expected, self._got)


class NotFoundError(MalleTrainError, LookupError):
    """There is nothing with the name that was asked for; becomes NOT_FOUND."""


class StalePlanError(MalleTrainError):
    """A plan does not fit the present state; becomes FAILED_PRECONDITION."""


class PreconditionError(MalleTrainError):
    """Something outside of the request must be put right first; becomes FAILED_PRECONDITION."""


class UnavailableError(MalleTrainError):
    """A peer can't be reached now; becomes UNAVAILABLE."""


class SlowReaderError(MalleTrainError):
    """The reader of a stream is too far behind; becomes RESOURCE_EXHAUSTED."""


class LimitExceededError(MalleTrainError):
    """A caller asks for more than it may have; becomes RESOURCE_EXHAUSTED. Nothing of what it asked for is done."""


class InvariantError(MalleTrainError, AssertionError):
    """The state of a service contradicts itself: a defect of MalleTrain. Raised only where `validate_state` is set."""
