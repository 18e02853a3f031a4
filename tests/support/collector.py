"""A collector of OpenTelemetry: a real gRPC server that takes OTLP and keeps the spans."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass(frozen=True)
class SeenSpan:
    """A span as it arrived."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[str, ...]
    begin: float
    end: float
    error: str
    attributes: dict[str, Any]


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[SeenSpan] = []
        self.metadata: list[dict[str, str]] = []

    def Export(self, request: Any, context: Any) -> Any:
        found = []
        for resource in request.resource_spans:
            service = {entry.key: entry.value.string_value for entry in resource.resource.attributes}["service.name"]
            found += [_seen(service, span) for scope in resource.scope_spans for span in scope.spans]
        with self._lock:
            self._spans += found
            self.metadata.append(dict(context.invocation_metadata()))
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[SeenSpan]:
        with self._lock:
            return list(self._spans)

    def named(self, name: str, **attributes: Any) -> list[SeenSpan]:
        """Spans of a name with these attributes, whose names are spelt as in `Span.note`."""
        wanted = {f"malletrain.{key.replace('__', '.')}": value for key, value in attributes.items()}
        return [span for span in self.spans if span.name == name and wanted.items() <= span.attributes.items()]


def _seen(service: str, span: Any) -> SeenSpan:
    return SeenSpan(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        tuple(link.span_id.hex() for link in span.links),
        span.start_time_unix_nano / 1e9,
        span.end_time_unix_nano / 1e9,
        span.status.message,
        {entry.key: _value(entry.value) for entry in span.attributes},
    )


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(entry) for entry in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@contextmanager
def collecting(port: int = 0, credentials: grpc.ServerCredentials | None = None) -> Iterator[tuple[Collector, int]]:
    """A collector on loopback, and its port."""
    collector = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(4), options=(("grpc.so_reuseport", 0),))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    address = f"127.0.0.1:{port}"
    bound = server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
    server.start()
    try:
        yield collector, bound
    finally:
        server.stop(0).wait()


def tree(spans: Sequence[SeenSpan], trace_id: str) -> str:
    """A trace in lines, for the message of a failed test."""
    own = [span for span in spans if span.trace_id == trace_id]

    def lines(parent: str, depth: int) -> Iterator[str]:
        for span in sorted((span for span in own if span.parent_id == parent), key=lambda span: span.begin):
            took = f"{span.end - span.begin:.3f} s"
            yield f"{'  ' * depth}{span.service} {span.name} {took} {span.attributes} {span.error}"
            yield from lines(span.span_id, depth + 1)

    return "\n".join(lines("", 0))
