"""Trace contexts between services: in messages, and in the metadata of unary calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import grpc
import grpc.aio

from malletrain.common.trace_context import HEADER, TraceContext, parse_traceparent
from malletrain.runtime.access.identity import Role, UnauthenticatedError, current_caller
from malletrain.runtime.method_handlers import Continuation, Handler
from malletrain.v1 import resources_pb2

_MAX_METADATA = 64
_present: ContextVar[TraceContext | None] = ContextVar("malletrain_trace_context", default=None)


def present_context() -> TraceContext | None:
    """What is being done now, in a handler or below `doing`; None if it is not traced."""
    return _present.get()


@contextmanager
def doing(context: TraceContext | None) -> Iterator[None]:
    """Have `present_context` tell a context until the block is left."""
    token = _present.set(context)
    try:
        yield
    finally:
        _present.reset(token)


def to_message(context: TraceContext | None) -> resources_pb2.TraceContext | None:
    """A context for a message; None leaves the field out."""
    return None if context is None else resources_pb2.TraceContext(traceparent=context.traceparent)


def from_message(message: resources_pb2.TraceContext) -> TraceContext | None:
    """The context of a message; None if there is none, or it can't be read."""
    return parse_traceparent(message.traceparent)


def metadata_of(context: TraceContext | None) -> tuple[tuple[str, str], ...]:
    """Metadata for a call that belongs to a context."""
    return () if context is None else ((HEADER, context.traceparent),)


class TraceInterceptor(grpc.aio.ServerInterceptor):
    """Reads the context of calls, of services only: others can't choose what is traced, or add to our traces.

    It stands outside of the check of the caller, and looks once that is done.
    """

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        """The handler as it is; `present_context` tells it the context."""
        handler = await continuation(handler_call_details)
        # The handler runs in the task that runs this.
        _present.set(_context_of(handler_call_details))
        return handler


def _context_of(details: grpc.HandlerCallDetails) -> TraceContext | None:
    try:
        if current_caller().role is not Role.SERVICE:
            return None
    except UnauthenticatedError:
        return None
    metadata = list(details.invocation_metadata or ())[:_MAX_METADATA]
    return next((parse_traceparent(value) for key, value in metadata if key == HEADER), None)
