"""What services trace with, whether anything is traced or not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeAlias

from malletrain.common.trace_context import TraceContext
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.tracing.settings import TracingSettings

Attribute: TypeAlias = str | bool | int | float | list[str]
_MAX_NAMES = 16


class Span(Protocol):
    """Something that takes time. It is sent once it has ended."""

    @property
    def context(self) -> TraceContext | None:
        """The identifiers by which other spans refer to this one; None: nothing is traced."""

    def note(self, **attributes: Attribute) -> None:
        """Add attributes; in their names, a dot stands for each double underscore."""

    def end(self, time: float | None = None, error: str = "") -> None:
        """End it; only the first call counts.

        Args:
            time: When, in seconds since the epoch; None: now.
            error: What went wrong; empty if nothing did.
        """


class Tracer(Protocol):
    """Makes the spans of one service. Nothing here waits, and nothing raises."""

    @property
    def enabled(self) -> bool:
        """Whether anything is traced."""

    def begin(
        self,
        name: str,
        parent: TraceContext | None = None,
        links: Iterable[TraceContext] = (),
        start: float | None = None,
        **attributes: Attribute,
    ) -> Span:
        """Begin a span.

        Args:
            name: What is done, e.g. "allocator.solve".
            parent: What it is part of, or follows from; None: it is the first of a trace.
            links: What else led to it.
            start: When it began, in seconds since the epoch; None: now.
            attributes: As of `Span.note`.
        """

    def of(self, service: str) -> Tracer:
        """The tracer for spans of another process, which tells this one what it did."""

    def close(self) -> None:
        """Send what waits; gives up after two seconds."""


class NoSpan:
    """A span that is not recorded."""

    context: TraceContext | None = None

    def note(self, **attributes: Attribute) -> None:
        """Does nothing."""

    def end(self, time: float | None = None, error: str = "") -> None:
        """Does nothing."""


class NoTracer:
    """The tracer of a service whose settings name no collector: its spans do nothing."""

    enabled = False

    def __init__(self) -> None:
        self._span = NoSpan()

    def begin(self, *_: object, **_attributes: object) -> Span:
        """A span that is not traced."""
        return self._span

    def of(self, service: str) -> Tracer:
        """This tracer: nothing is traced."""
        del service
        return self

    def close(self) -> None:
        """Does nothing."""


def names(some: Iterable[str]) -> list[str]:
    """Names for an attribute: sorted, and not too many."""
    return sorted(some)[:_MAX_NAMES]


def attribute_name(keyword: str) -> str:
    """The full name of an attribute, e.g. "malletrain.job.id" of `job__id`."""
    return "malletrain." + keyword.replace("__", ".")


def attributes_of(keywords: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """Attributes with their full names."""
    return {attribute_name(keyword): value for keyword, value in keywords.items()}


TRACED = ("scavenger", "allocator", "job_manager")
"""Services that an event goes through."""
EXTRA = "the packages of OpenTelemetry (pip install 'malletrain[tracing]'), or nothing"


def open_tracer(service: str, settings: TracingSettings) -> Tracer:
    """The tracer of a service. Without a collector, or spans of its own, it does nothing, and imports no OpenTelemetry.

    Args:
        service: Name of the service.
        settings: Where the collector is.

    Raises:
        InvalidInputError: the packages are missing, or a file can't be used.
    """
    if not settings.endpoint or service not in TRACED:
        return NoTracer()
    try:
        from malletrain.runtime.tracing.otlp import open_otlp_tracer
    except ImportError as error:
        raise InvalidInputError("tracing.endpoint", f"{EXTRA}: {error}", settings.endpoint) from error
    return open_otlp_tracer(service, settings)
