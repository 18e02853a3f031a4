"""What can go wrong between a feed and its trainings. The messages name the field and what was expected."""

from __future__ import annotations


class FeedError(Exception):
    """The other side sends something that makes no sense, or refuses.

    Attributes:
        final: Whether asking again is of no use.
    """

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class MovedError(FeedError):
    """Others have come near: a training goes on with these, as soon as it has asked again."""


class NotSharingError(FeedError):
    """The feed of another node shares nothing with this one now."""


class UnsuitableSampleError(FeedError):
    """Samples of a dataset can't be shared."""

    def __init__(self, message: str) -> None:
        super().__init__(message, final=True)


class MalformedSampleError(FeedError, ValueError):
    """Bytes are not those of a sample."""
