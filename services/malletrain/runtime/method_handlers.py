"""Handlers of gRPC methods that wrap others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

import grpc

# At run time the class takes no parameters.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable["Handler | None"]]
Surrounding = Callable[[Any, Any], AbstractAsyncContextManager[Any]]
"""Surrounds a call, of which it gets the request, or the requests, and the context; it gives what the handler gets."""


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


def surround_calls(
    handler: Handler,
    surrounding: Surrounding,
    parse: Callable[[bytes], Any] | None = None,
    *,
    takes_stream: bool | None = None,
) -> Handler:
    """A handler of which each call is made within something else.

    Args:
        surrounding: What each call is made within.
        parse: What makes a request of bytes instead.
        takes_stream: Whether it gets a stream of requests, of which `surrounding` may take one; None: as before.
    """
    inner = behaviour_of(handler)

    async def call(request: Any, context: Any) -> Any:
        async with surrounding(request, context) as taken:
            return await inner(taken, context)

    async def call_stream(request: Any, context: Any) -> AsyncIterator[Any]:
        async with surrounding(request, context) as taken:
            async for response in responses_of(inner, taken, context):
                yield response

    factory: Any = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[bool(handler.request_streaming if takes_stream is None else takes_stream), bool(handler.response_streaming)]
    made: Handler = factory(
        call_stream if handler.response_streaming else call,
        parse or handler.request_deserializer,
        handler.response_serializer,
    )
    return made
