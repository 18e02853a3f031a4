"""The tracer of a service's process, by the settings."""

from __future__ import annotations

from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.tracing.settings import TracingSettings
from malletrain.runtime.tracing.spans import NoTracer, Tracer

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
