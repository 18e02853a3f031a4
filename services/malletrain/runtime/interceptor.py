"""Turns errors of the services into gRPC status codes, with details that name the field."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio
import structlog
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from malletrain.runtime.errors import (
    InvalidInputError,
    MalleTrainError,
    NotFoundError,
    StalePlanError,
    UnavailableError,
)

_CODES: tuple[tuple[type[MalleTrainError], grpc.StatusCode], ...] = (
    (InvalidInputError, grpc.StatusCode.INVALID_ARGUMENT),
    (NotFoundError, grpc.StatusCode.NOT_FOUND),
    (StalePlanError, grpc.StatusCode.FAILED_PRECONDITION),
    (UnavailableError, grpc.StatusCode.UNAVAILABLE),
    (MalleTrainError, grpc.StatusCode.INTERNAL),
)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: MalleTrainError) -> NoReturn:
    """End a call with the status code of an error, and for a wrong input the name of the field. Never returns."""
    code = next(code for kind, code in _CODES if isinstance(error, kind))
    status = status_pb2.Status(code=code.value[0], message=str(error))
    if isinstance(error, InvalidInputError):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=f"expected {error.expected}"
        )
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    trailing = rpc_status.to_status(status).trailing_metadata
    await context.abort(code, str(error), trailing)
    raise AssertionError("abort returned")


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler so that a `MalleTrainError` ends its call with the status code of that error."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The wrapped handler of a method."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith("/malletrain."):
            return handler
        log = structlog.get_logger(__name__).bind(method=handler_call_details.method)
        if handler.response_streaming:
            inner = handler.unary_stream or handler.stream_stream
            factory = (
                grpc.unary_stream_rpc_method_handler if handler.unary_stream else grpc.stream_stream_rpc_method_handler
            )
            wrapped: Any = _wrap_stream(inner, log)
        else:
            inner = handler.unary_unary or handler.stream_unary
            factory = (
                grpc.unary_unary_rpc_method_handler if handler.unary_unary else grpc.stream_unary_rpc_method_handler
            )
            wrapped = _wrap_unary(inner, log)
        return factory(wrapped, handler.request_deserializer, handler.response_serializer)


def _wrap_unary(inner: Any, log: Any) -> Callable[[Any, Any], Awaitable[Any]]:
    async def call(request: Any, context: Any) -> Any:
        try:
            return await inner(request, context)
        except MalleTrainError as error:
            log.info("refused", error=str(error))
            await abort(context, error)

    return call


def _wrap_stream(inner: Any, log: Any) -> Callable[[Any, Any], AsyncIterator[Any]]:
    async def call(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async for response in inner(request, context):
                yield response
        except MalleTrainError as error:
            log.info("refused", error=str(error))
            await abort(context, error)

    return call
