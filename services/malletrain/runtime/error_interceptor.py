"""Turns errors of the services into gRPC status codes, with details that name the field."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from malletrain.runtime.access.audit import RefusalKind, Refusals
from malletrain.runtime.access.identity import PermissionDeniedError, UnauthenticatedError, current_caller
from malletrain.runtime.errors import (
    InvalidInputError,
    LimitExceededError,
    MalleTrainError,
    NotFoundError,
    PreconditionError,
    SlowReaderError,
    StalePlanError,
    UnavailableError,
)
from malletrain.runtime.logs import refusal_logger
from malletrain.runtime.method_handlers import Continuation, Handler, surround_calls

_CODES: tuple[tuple[type[MalleTrainError], grpc.StatusCode], ...] = (
    (InvalidInputError, grpc.StatusCode.INVALID_ARGUMENT),
    (NotFoundError, grpc.StatusCode.NOT_FOUND),
    (StalePlanError, grpc.StatusCode.FAILED_PRECONDITION),
    (PreconditionError, grpc.StatusCode.FAILED_PRECONDITION),
    (UnavailableError, grpc.StatusCode.UNAVAILABLE),
    (UnauthenticatedError, grpc.StatusCode.UNAUTHENTICATED),
    (PermissionDeniedError, grpc.StatusCode.PERMISSION_DENIED),
    (SlowReaderError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (LimitExceededError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (MalleTrainError, grpc.StatusCode.INTERNAL),
)
_MAX_MESSAGE_LENGTH = 512
_MAX_FIELD_LENGTH = 256
"""In bytes of UTF-8. Both travel in the trailing metadata, of which clients take 8 kB."""


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: MalleTrainError) -> NoReturn:
    """End a call with the status code of an error, and for a wrong input the name of the field. Never returns."""
    code = next(code for kind, code in _CODES if isinstance(error, kind))
    message = _cut(str(error), _MAX_MESSAGE_LENGTH)
    status = status_pb2.Status(code=code.value[0], message=message)
    if isinstance(error, InvalidInputError):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=_cut(error.field, _MAX_FIELD_LENGTH),
            description=_cut(f"expected {error.expected}", _MAX_FIELD_LENGTH),
        )
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    trailing = rpc_status.to_status(status).trailing_metadata
    await context.abort(code, message, trailing)
    raise AssertionError("abort returned")


def _cut(text: str, max_bytes: int) -> str:
    encoded = text.encode("utf-8", "backslashreplace")
    if len(encoded) <= max_bytes:
        return encoded.decode()
    return encoded[: max_bytes - 3].decode(errors="ignore") + "…"


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler, so that each error ends its call with a status code that fits.

    A `MalleTrainError` has its own. A request that is no message of its type is INVALID_ARGUMENT. Any other exception
    is a defect of ours: it goes to the log, and the caller is told only that there was one.
    """

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        """The wrapped handler of a method."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith("/malletrain."):
            return handler
        log = structlog.get_logger(__name__).bind(method=handler_call_details.method)
        check: Callable[[Any], Any] = _check_all if handler.request_streaming else _check

        @asynccontextmanager
        async def refusing(request: Any, context: Any) -> AsyncIterator[Any]:
            try:
                yield check(request)
            except Exception as error:  # noqa: BLE001 - whatever it is, the call must end with a status
                await _refuse(context, error, log)

        return surround_calls(handler, refusing, _parser(handler.request_deserializer))


class _Malformed:
    """Stands for a request that is no message of its type: an error in gRPC's own hands would become INTERNAL."""

    def __init__(self, error: DecodeError) -> None:
        self.error = error


def _parser(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    if deserialize is None:
        return None

    def parse(body: bytes) -> Any:
        try:
            return deserialize(body)
        except DecodeError as error:
            return _Malformed(error)

    return parse


def _check(request: Any) -> Any:
    if isinstance(request, _Malformed):
        raise InvalidInputError("request", f"a message of this method's request type ({request.error})")
    return request


async def _check_all(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        yield _check(request)


def _who() -> str:
    try:
        return current_caller().user
    except UnauthenticatedError:
        return ""


def _report(kind: RefusalKind, count: int) -> None:
    refusal_logger(__name__).info(
        "refused many times", user=kind.who, method=kind.method, error=kind.reason, more_calls=count
    )


_REFUSALS = Refusals(_report)
"""Of calls with a valid token, too: a log that is washed away tells of nothing else."""


async def _refuse(context: Any, error: Exception, log: Any) -> NoReturn:
    if isinstance(error, grpc.aio.AbortError):  # the handler has ended the call itself
        raise error
    if isinstance(error, MalleTrainError):
        if _REFUSALS.count_refusal(
            RefusalKind(_who(), str(structlog.get_context(log).get("method", "")), type(error).__name__)
        ):
            refusal_logger(__name__, log).info("refused", error=_cut(str(error), _MAX_MESSAGE_LENGTH))
        await abort(context, error)
    log.error("a call has failed", exc_info=error)
    await abort(context, MalleTrainError("this is a defect of MalleTrain; the service's log says more"))
