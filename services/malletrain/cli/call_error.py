"""The error of a call to a service."""

from __future__ import annotations

from malletrain.runtime.errors import MalleTrainError


class ServiceCallError(MalleTrainError):
    """A call to a service has failed.

    Attributes:
        wrong_use: Whether the request was invalid.
    """

    def __init__(self, message: str, wrong_use: bool) -> None:
        super().__init__(message)
        self.wrong_use = wrong_use
