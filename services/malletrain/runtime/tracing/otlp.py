"""Traces with the SDK of OpenTelemetry, which sends spans by OTLP. Imported only where the settings ask for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

import grpc
import structlog
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, StatusCode, TraceFlags, set_span_in_context
from opentelemetry.trace import Span as SdkSpan
from opentelemetry.trace import Tracer as SdkTracer

from malletrain.common.backoff import Backoff
from malletrain.common.tasks import start_thread
from malletrain.common.trace_context import TraceContext
from malletrain.common.version import VERSION
from malletrain.runtime.access.keys import read_private
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.logs import log_failure
from malletrain.runtime.tracing.settings import TracingSettings
from malletrain.runtime.tracing.spans import Attribute, Span, attributes_of

_FIRST_PAUSE_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 60.0


class PatientExporter(SpanExporter):
    """Leaves a collector that fails alone for a while, longer each time; one warning until it answers again."""

    def __init__(self, inner: SpanExporter, collector: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            inner: Sends spans.
            collector: Its address, for the log.
            monotonic: Seconds of a clock that never goes back.
        """
        self._inner = inner
        self._collector = collector
        self._monotonic = monotonic
        self._backoff = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        self._next_at = 0.0
        self._dropped = 0
        self._log = structlog.get_logger(__name__)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans, or drop them."""
        if self._backoff.active and self._monotonic() < self._next_at:
            self._dropped += len(spans)
            return SpanExportResult.FAILURE
        result = self._inner.export(spans)
        if result is SpanExportResult.SUCCESS:
            if self._backoff.active:
                self._log.info("spans are sent again", collector=self._collector, dropped=self._dropped)
            self._backoff.succeed()
            self._dropped = 0
            return result
        self._dropped += len(spans)
        if not self._backoff.active:
            self._log.warning("spans can't be sent and are dropped, trying again", collector=self._collector)
        self._next_at = self._monotonic() + self._backoff.fail()
        return result

    def shutdown(self) -> None:
        """Close the inner exporter; nothing is sent after that."""
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Have the inner exporter send what it still has; nothing is queued here."""
        return self._inner.force_flush(timeout_millis)


_EXPORT_SECONDS = 5.0
_FLUSH_SECONDS = 2.0
_DELAY_MS = 1000
_BATCH = 512
_MAX_ATTRIBUTE_LENGTH = 256
_MAX_LINKS = 64
_MAX_HEADERS = 16 << 10
_NAMESPACE = "malletrain"


class OtlpTracer:
    """Traces one service. Spans are sent by a thread of their own; those that don't fit into its queue are dropped."""

    enabled = True

    def __init__(self, service: str, processor: SpanProcessor, sample_ratio: float) -> None:
        """
        Args:
            service: Name of the service.
            processor: Takes the spans.
            sample_ratio: Part of the traces that begin here and are recorded.
        """
        resource = Resource(
            {
                "service.namespace": _NAMESPACE,
                "service.name": f"{_NAMESPACE}-{service}",
                "service.version": VERSION,
            }
        )
        provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(sample_ratio)),
            resource=resource,
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_span_attribute_length=_MAX_ATTRIBUTE_LENGTH, max_links=_MAX_LINKS),
        )
        provider.add_span_processor(processor)
        self._processor = processor
        self._sample_ratio = sample_ratio
        self._tracer: SdkTracer = provider.get_tracer(_NAMESPACE)

    def begin(
        self,
        name: str,
        parent: TraceContext | None = None,
        links: Iterable[TraceContext] = (),
        start: float | None = None,
        **attributes: Attribute,
    ) -> Span:
        """Begin a span."""
        context = Context()
        if parent is not None:
            context = set_span_in_context(NonRecordingSpan(_sdk_context(parent)), context)
        span = self._tracer.start_span(
            name,
            context,
            attributes=attributes_of(attributes),
            links=[Link(_sdk_context(link)) for link in links],
            start_time=_nanoseconds(start),
        )
        return _OtlpSpan(span)

    def of(self, service: str) -> OtlpTracer:
        """The tracer of another process; its spans go the same way."""
        return OtlpTracer(service, self._processor, self._sample_ratio)

    def close(self) -> None:
        """Send what waits, for two seconds at most."""
        start_thread(self._processor.shutdown, "last-spans", log_failure).join(_FLUSH_SECONDS)


class _OtlpSpan:
    def __init__(self, span: SdkSpan) -> None:
        self._span = span
        context = span.get_span_context()
        sampled = context.trace_flags.sampled
        self.context = TraceContext(f"{context.trace_id:032x}", f"{context.span_id:016x}", sampled)

    def note(self, **attributes: Attribute) -> None:
        self._span.set_attributes(attributes_of(attributes))

    def end(self, time: float | None = None, error: str = "") -> None:
        if not self._span.is_recording():
            return
        if error:
            self._span.set_status(StatusCode.ERROR, error[:_MAX_ATTRIBUTE_LENGTH])
        self._span.end(_nanoseconds(time))


def open_otlp_tracer(service: str, settings: TracingSettings) -> OtlpTracer:
    """The tracer of a service.

    Raises:
        InvalidInputError: a file of the settings can't be used.
    """
    # They would log every batch that a collector does not take; `PatientExporter` says it once.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
    exporter = OTLPSpanExporter(
        endpoint=settings.endpoint,
        insecure=not settings.encrypted,
        credentials=_credentials(settings) if settings.encrypted else None,
        headers=read_headers(settings),
        timeout=_EXPORT_SECONDS,
        channel_options=(("grpc.enable_http_proxy", 0),),  # type: ignore[arg-type]
    )
    processor = BatchSpanProcessor(
        PatientExporter(exporter, settings.address),
        max_queue_size=settings.queue_spans,
        schedule_delay_millis=_DELAY_MS,
        max_export_batch_size=min(_BATCH, settings.queue_spans),
    )
    return OtlpTracer(service, processor, settings.sample_ratio)


def read_headers(settings: TracingSettings) -> tuple[tuple[str, str], ...]:
    """Headers for the collector.

    Raises:
        InvalidInputError: the file can't be used; no message repeats what is in it.
    """
    if settings.headers_file is None:
        return ()
    try:
        text = read_private(settings.headers_file).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not ASCII"
        raise InvalidInputError("tracing.headers_file", f"a readable file ({reason})") from None
    except InvalidInputError as error:
        raise InvalidInputError("tracing.headers_file", f"a private file ({error})") from None
    if len(text) > _MAX_HEADERS:
        raise InvalidInputError("tracing.headers_file", f"at most {_MAX_HEADERS} bytes")
    headers = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        name = name.strip().lower()
        if not colon or not name.replace("-", "").replace("_", "").isalnum() or not value.strip().isprintable():
            raise InvalidInputError(f"tracing.headers_file:{number}", "name: value")
        headers.append((name, value.strip()))
    return tuple(headers)


def _credentials(settings: TracingSettings) -> grpc.ChannelCredentials:
    if settings.authority_file is None:
        return grpc.ssl_channel_credentials()
    try:
        return grpc.ssl_channel_credentials(settings.authority_file.read_bytes())
    except OSError as error:
        raise InvalidInputError("tracing.authority_file", f"a readable file ({error.strerror})") from error


def _sdk_context(context: TraceContext) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if context.sampled else TraceFlags.DEFAULT)
    return SpanContext(int(context.trace_id, 16), int(context.span_id, 16), is_remote=True, trace_flags=flags)


def _nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)
