"""Sends spans while the collector answers. While it does not, they are dropped."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import structlog
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0


class PatientExporter(SpanExporter):
    """Leaves a collector that fails alone for a while, longer each time; one warning until it answers again."""

    def __init__(self, inner: SpanExporter, collector: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Send nothing yet.

        Args:
            inner: Sends spans.
            collector: Its address, for the log.
            monotonic: Seconds of a clock that never goes back.
        """
        self._inner = inner
        self._collector = collector
        self._monotonic = monotonic
        self._pause = 0.0
        self._next_at = 0.0
        self._dropped = 0
        self._log = structlog.get_logger(__name__)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans, or drop them."""
        if self._pause and self._monotonic() < self._next_at:
            self._dropped += len(spans)
            return SpanExportResult.FAILURE
        result = self._inner.export(spans)
        if result is SpanExportResult.SUCCESS:
            if self._pause:
                self._log.info("spans are sent again", collector=self._collector, dropped=self._dropped)
            self._pause, self._dropped = 0.0, 0
            return result
        self._dropped += len(spans)
        if not self._pause:
            self._log.warning("spans can't be sent and are dropped, trying again", collector=self._collector)
        self._pause = min(2 * self._pause or _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        self._next_at = self._monotonic() + self._pause
        return result

    def shutdown(self) -> None:
        """Send nothing any more."""
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing waits here."""
        return self._inner.force_flush(timeout_millis)
