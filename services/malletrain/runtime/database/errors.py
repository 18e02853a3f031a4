"""What goes wrong with a database."""

from __future__ import annotations

from malletrain.runtime.errors import MalleTrainError, UnavailableError


class DatabaseUnavailableError(UnavailableError):
    """The database does not answer, or refuses for a passing reason. Whether a commit took place may be unknown."""

    def __init__(self, service: str, consequence: str = "try again later") -> None:
        super().__init__(f"the database of {service} does not answer: {consequence}")


class CommitUnknownError(DatabaseUnavailableError):
    """The connection was lost while a change was committed. Storing the same change again stores it once."""

    def __init__(self, service: str) -> None:
        super().__init__(service, "it is not known whether the change was stored; look before you repeat it")


class DatabaseTakenError(MalleTrainError):
    """Another process has written to the database that this one took for its own."""


class SchemaVersionError(MalleTrainError):
    """The tables are of a version that this one can't use."""
