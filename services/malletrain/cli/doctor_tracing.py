"""Check of `malletrain doctor` on distributed tracing."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from malletrain.cli.doctor_checks import Finding, judge
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.tracing.opening import open_tracer
from malletrain.runtime.tracing.settings import TracingSettings

_CONNECT_SECONDS = 3.0


def examine_tracing(settings: TracingSettings) -> Finding:
    """Whether spans can be sent: packages, files, and whether the collector can be connected to."""
    check = "tracing"
    if not settings.endpoint:
        return Finding(check, True, "off (tracing.endpoint is not set)")
    try:
        open_tracer("allocator", settings).close()
    except InvalidInputError as error:
        return Finding(check, False, str(error), "see docs/operators/tracing.md")
    parts = urlsplit(settings.endpoint)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=_CONNECT_SECONDS):
            found, reached = f"{settings.address} answers", True
    except OSError as error:
        found, reached = f"{settings.address}: {error}", False
    return judge(check, reached, found, "start the collector, or correct tracing.endpoint; the services run without it")
