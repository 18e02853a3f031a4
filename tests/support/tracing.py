"""A tracer of the real SDK whose spans stay in memory."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from malletrain.common.trace_context import TraceContext
from malletrain.runtime.tracing.otlp import OtlpTracer


class Traced:
    """A tracer, and what it has traced."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracer = OtlpTracer("tested", SimpleSpanProcessor(self._exporter), 1.0)

    def context(self) -> TraceContext:
        """Of a span of a trace of its own, which does not count as traced."""
        found = self.tracer.begin("elsewhere").context
        assert found is not None
        return found

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        """Spans that have ended, by name; the last of each."""
        return {span.name: span for span in self._exporter.get_finished_spans()}

    def count(self, name: str) -> int:
        return sum(span.name == name for span in self._exporter.get_finished_spans())


def parent_of(span: ReadableSpan) -> str:
    """Its parent's identifier; empty without one."""
    return f"{span.parent.span_id:016x}" if span.parent else ""


def id_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


def links_of(span: ReadableSpan) -> list[str]:
    return [f"{link.context.span_id:016x}" for link in span.links]


def attributes_without_prefix(span: ReadableSpan) -> dict[str, Any]:
    return {name.removeprefix("malletrain."): value for name, value in (span.attributes or {}).items()}
