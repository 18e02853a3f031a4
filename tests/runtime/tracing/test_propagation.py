from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from malletrain.common.trace_context import TraceContext
from malletrain.runtime.access.identity import Role
from malletrain.runtime.tracing.propagation import (
    doing,
    from_message,
    metadata_of,
    present_context,
    to_message,
)
from malletrain.runtime.tracing.spans import Tracer
from malletrain.v1 import allocator_pb2, allocator_pb2_grpc, resources_pb2
from tests.support.access import credential_of
from tests.support.channels import plain_channel
from tests.support.stand_ins import serve
from tests.support.tracing import Traced

CONTEXT = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", sampled=True)
HEADER = metadata_of(CONTEXT)


class Noting(allocator_pb2_grpc.AllocatorServiceServicer):
    """Notes the context of each call."""

    def __init__(self) -> None:
        self.seen: list[TraceContext | None] = []

    async def GetPlan(self, request: Any, context: Any) -> allocator_pb2.GetPlanResponse:
        self.seen.append(present_context())
        return allocator_pb2.GetPlanResponse()


@asynccontextmanager
async def served(tracer: Tracer | None) -> AsyncIterator[tuple[Noting, str]]:
    noting = Noting()
    async with serve(noting, tls=False, tracer=tracer) as address:
        yield noting, address


async def call(address: str, role: Role, metadata: Any) -> None:
    async with plain_channel(address, credential_of("somebody", role)) as channel:
        stub = allocator_pb2_grpc.AllocatorServiceStub(channel)
        await stub.GetPlan(allocator_pb2.GetPlanRequest(), metadata=metadata, timeout=10)


async def test_services_pass_their_context_on_and_nobody_else() -> None:
    async with served(Traced().tracer) as (noting, address):
        await call(address, Role.SERVICE, HEADER)
        await call(address, Role.SERVICE, ())
        for role in (Role.VIEWER, Role.USER, Role.OPERATOR):
            await call(address, role, HEADER)
        await call(address, Role.SERVICE, HEADER)
    assert noting.seen == [CONTEXT, None, None, None, None, CONTEXT]


@pytest.mark.parametrize("value", ["", "nonsense", "00-" + "0" * 32 + "-b7ad6b7169203331-01", "x" * 6000])
async def test_a_header_that_makes_no_sense_is_ignored(value: str) -> None:
    async with served(Traced().tracer) as (noting, address):
        await call(address, Role.SERVICE, (("traceparent", value),))
    assert noting.seen == [None]


async def test_headers_are_not_read_where_nothing_is_traced() -> None:
    async with served(None) as (noting, address):
        await call(address, Role.SERVICE, HEADER)
    assert noting.seen == [None]


def test_messages() -> None:
    assert to_message(None) is None
    assert from_message(resources_pb2.TraceContext()) is None
    assert from_message(resources_pb2.TraceContext(traceparent="nonsense")) is None
    message = to_message(CONTEXT)
    assert message is not None
    assert from_message(message) == CONTEXT


def test_the_present_context_ends_with_its_block() -> None:
    with doing(CONTEXT):
        assert present_context() == CONTEXT
    assert present_context() is None
