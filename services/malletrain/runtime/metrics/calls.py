"""Counts the calls that a gRPC server answers, and measures how long they take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from malletrain.runtime.method_handlers import Continuation, Handler, surround_calls

_METHOD = ("rpc_service", "rpc_method")
_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_CODES = {code.value[0]: code.name for code in grpc.StatusCode}


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Outermost of a server's interceptors, so that it sees calls that others refuse.

    Unary calls are timed. Streams, which may last for days, are counted when they end, and while they are open.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._handled = Counter(
            "malletrain_rpc_handled",
            "Calls that have ended, by gRPC status code; streams count at their end.",
            (*_METHOD, "code"),
            registry=registry,
        )
        self._seconds = Histogram(
            "malletrain_rpc_seconds", "How long unary calls took.", _METHOD, registry=registry, buckets=_BUCKETS_S
        )
        self._open = Gauge("malletrain_rpc_open_streams", "Streams that are open.", _METHOD, registry=registry)
        self._methods: dict[str, _Method] = {}

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        """The counted handler of a method."""
        handler = await continuation(handler_call_details)
        if handler is None:
            # The name is the caller's choice: as a label it would be one more time series each.
            self._handled.labels("", "unknown", grpc.StatusCode.UNIMPLEMENTED.name).inc()
            return None
        method = self._methods.get(handler_call_details.method)
        if method is None:
            method = self._methods[handler_call_details.method] = self._method(
                handler_call_details.method, streaming=bool(handler.response_streaming or handler.request_streaming)
            )
        return surround_calls(handler, method.counted)

    def _method(self, path: str, *, streaming: bool) -> _Method:
        _, service, name = path.split("/", 2)
        labels = (service, name)
        return _Method(
            lambda code: self._handled.labels(*labels, code),
            None if streaming else self._seconds.labels(*labels),
            self._open.labels(*labels) if streaming else None,
        )


class _Method:
    """The metrics of one method. Looking them up by their labels takes longer than counting."""

    def __init__(
        self, handled: Callable[[str], Counter], seconds: Histogram | None, open_streams: Gauge | None
    ) -> None:
        self._handled = handled
        self._by_code: dict[str, Counter] = {}
        self._seconds = seconds
        self._open = open_streams

    @asynccontextmanager
    async def counted(self, request: Any, context: Any) -> AsyncIterator[Any]:
        begin, error = time.perf_counter(), None
        if self._open is not None:
            self._open.inc()
        try:
            yield request
        except BaseException as caught:
            error = caught
            raise
        finally:
            self._end(context, error, begin)

    def _end(self, context: Any, error: BaseException | None, begin: float) -> None:
        if self._open is not None:
            self._open.dec()
        if self._seconds is not None:
            self._seconds.observe(time.perf_counter() - begin)
        code = _code(context, error)
        counter = self._by_code.get(code)
        if counter is None:
            counter = self._by_code[code] = self._handled(code)
        counter.inc()


def _code(context: Any, error: BaseException | None) -> str:
    """The status code with which a call ends."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return grpc.StatusCode.CANCELLED.name
    code = context.code()
    number = code.value[0] if isinstance(code, grpc.StatusCode) else int(code or 0)
    if error is not None and number == 0:
        return grpc.StatusCode.UNKNOWN.name
    return _CODES.get(number, grpc.StatusCode.UNKNOWN.name)
