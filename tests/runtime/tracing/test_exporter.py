from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from structlog.testing import capture_logs

from malletrain.runtime.tracing.otlp import PatientExporter
from tests.support.clocks import ManualClock

SPAN = ReadableSpan("span")


class Moody(SpanExporter):
    """Succeeds if told so."""

    def __init__(self) -> None:
        self.good = False
        self.asked = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.asked += 1
        return SpanExportResult.SUCCESS if self.good else SpanExportResult.FAILURE


def test_a_collector_that_fails_is_left_alone_for_longer_each_time_and_noted_once() -> None:
    inner, clock = Moody(), ManualClock()
    with capture_logs() as said:
        exporter = PatientExporter(inner, "collector:4317", clock.monotonic)
        asked = []
        for _ in range(600):
            exporter.export([SPAN, SPAN])
            asked.append(inner.asked)
            clock.advance(1.0)
        assert [entry["log_level"] for entry in said] == ["warning"]
        # After 1, 2, 4, 8, 16, 32 and then every 60 seconds.
        assert inner.asked == 1 + 6 + (600 - 1 - 63) // 60
        assert asked[:8] == [1, 2, 2, 3, 3, 3, 3, 4]
        inner.good = True
        clock.advance(60.0)
        assert exporter.export([SPAN]) is SpanExportResult.SUCCESS
        assert exporter.export([SPAN]) is SpanExportResult.SUCCESS
    assert [entry["event"] for entry in said][1:] == ["spans are sent again"]
    assert said[1]["dropped"] == 1200
