"""Handlers of gRPC methods that wrap others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import grpc

# At run time the class takes no parameters.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


def behaviour_of(handler: Handler) -> Any:
    """The function that a handler calls, whichever of its four kinds it is."""
    return handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream


async def responses_of(behaviour: Any, request: Any, context: Any) -> AsyncIterator[Any]:
    """The responses of a streaming handler: an iterator, or a coroutine that writes them, as gRPC's Health.Watch."""
    responses = behaviour(request, context)
    if not hasattr(responses, "__aiter__"):
        await responses
        return
    async for response in responses:
        yield response


def with_behaviour(
    handler: Handler, behaviour: Callable[..., Any], parse: Callable[[bytes], Any] | None = None
) -> Handler:
    """A handler of the same kind that calls another function.

    Args:
        behaviour: What it calls instead.
        parse: What makes a request of bytes instead.
    """
    factory: Any = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[bool(handler.request_streaming), bool(handler.response_streaming)]
    made: Handler = factory(behaviour, parse or handler.request_deserializer, handler.response_serializer)
    return made
