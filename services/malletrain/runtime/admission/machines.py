"""Counts calls by the machine that they come from, at ports where callers show certificates and no tokens."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from malletrain.runtime.admission.peers import PeerNames
from malletrain.runtime.method_handlers import Continuation, Handler, surround_calls

_ROOT = 0


class MachineCalls(grpc.aio.ServerInterceptor):
    """Bounds the calls of one machine, or of one account of this machine. It must be the outermost interceptor.

    Not the calls of all together, as gRPC does: of thousands of nodes each has one, and none may keep out another. The
    services' own account and root may have any number: who has these can do worse.
    """

    def __init__(self, peers: PeerNames, max_calls: int, first_message_seconds: float) -> None:
        """
        Args:
            peers: Names machines and accounts.
            max_calls: Calls under way of each of them.
            first_message_seconds: How long the first message of a call may take to arrive.
        """
        self._peers = peers
        self._max_calls = max_calls
        self._seconds = first_message_seconds
        self._exempt = frozenset({f"uid {_ROOT}", f"uid {os.geteuid()}"})
        self._counts: Counter[str] = Counter()

    @property
    def calls(self) -> int:
        """How many calls are under way, of all machines."""
        return self._counts.total()

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        """The counted handler of a method."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        takes_stream = bool(handler.request_streaming)

        @asynccontextmanager
        async def limited(request: Any, context: Any) -> AsyncIterator[Any]:
            async with self._limit_calls(context):
                yield self._timely(request, context) if takes_stream else request

        return surround_calls(handler, limited)

    @asynccontextmanager
    async def _limit_calls(self, context: Any) -> AsyncIterator[None]:
        name = self._peers.name(context.peer())
        if self._counts[name] >= self._max_calls and name not in self._exempt:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{name} has {self._counts[name]} calls under way: at most {self._max_calls} "
                "(limits.max_connections_per_peer); end some, and try again",
            )
        self._counts[name] += 1
        try:
            yield
        finally:
            self._counts[name] -= 1
            if not self._counts[name]:
                del self._counts[name]

    async def _timely(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """The requests of a call, which ends if the first one does not come in time."""
        stream = aiter(requests)
        try:
            async with asyncio.timeout(self._seconds):
                first = await anext(stream, None)
        except TimeoutError:
            await context.abort(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"the first message of this call did not arrive within {self._seconds:g} s "
                "(limits.first_message_seconds)",
            )
        if first is None:
            return
        yield first
        async for request in stream:
            yield request
