"""A real server on loopback: errors, health, reflection, streams across restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from malletrain.runtime.access.identity import Role
from malletrain.runtime.errors import InvalidInputError, NotFoundError, StalePlanError, UnavailableError
from malletrain.runtime.following import follow
from malletrain.runtime.limits import ServerLimits
from malletrain.runtime.server import ServiceHost
from malletrain.v1 import profiler_pb2, profiler_pb2_grpc
from tests.support.access import CREDENTIAL, checked, credential_of
from tests.support.channels import plain_blocking_channel, plain_channel
from tests.support.stand_ins import serve
from tests.support.waiting import wait_until_async

NAME = "malletrain.v1.ProfilerService"


class Troubled(profiler_pb2_grpc.ProfilerServiceServicer):
    """Raises what it is told to; its stream gives two messages and then lasts."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    async def GetProfile(self, request: Any, context: Any) -> profiler_pb2.GetProfileResponse:
        del request, context
        if self._error:
            raise self._error
        return profiler_pb2.GetProfileResponse()

    async def WatchProfiles(self, request: Any, context: Any) -> AsyncIterator[Any]:
        del request, context
        if self._error:
            raise self._error
        for _ in range(2):
            yield profiler_pb2.WatchProfilesResponse()
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidInputError("specs[0].min_nodes", "at least 1", -1), grpc.StatusCode.INVALID_ARGUMENT),
        (NotFoundError("no job j9"), grpc.StatusCode.NOT_FOUND),
        (StalePlanError("n1 has left"), grpc.StatusCode.FAILED_PRECONDITION),
        (UnavailableError("monitor"), grpc.StatusCode.UNAVAILABLE),
    ],
)
async def test_errors_become_status_codes(error: Exception, code: grpc.StatusCode) -> None:
    async with serve(Troubled(error), tls=False) as address, plain_channel(address, CREDENTIAL) as channel:
        stub = profiler_pb2_grpc.ProfilerServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetProfile(profiler_pb2.GetProfileRequest(), timeout=5)
        assert (caught.value.code(), caught.value.details()) == (code, str(error))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stub.WatchProfiles(profiler_pb2.WatchProfilesRequest(), timeout=5):
                pass
        assert caught.value.code() == code


async def test_bad_input_comes_with_the_field() -> None:
    error = InvalidInputError("specs[0].min_nodes", "at least 1", -1)
    async with serve(Troubled(error), tls=False) as address:
        with plain_blocking_channel(address, CREDENTIAL) as channel:
            call = profiler_pb2_grpc.ProfilerServiceStub(channel).GetProfile.future(profiler_pb2.GetProfileRequest())
            failure = await asyncio.to_thread(call.exception)
        status = rpc_status.from_call(failure)
        assert status is not None
        detail = error_details_pb2.BadRequest()
        assert status.details[0].Unpack(detail)
        assert detail.field_violations[0].field == "specs[0].min_nodes"


async def test_a_defect_is_told_without_its_details() -> None:
    async with serve(Troubled(KeyError("secret")), tls=False) as address, plain_channel(address, CREDENTIAL) as channel:
        stub = profiler_pb2_grpc.ProfilerServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetProfile(profiler_pb2.GetProfileRequest(), timeout=5)
        assert caught.value.code() == grpc.StatusCode.INTERNAL
        assert "secret" not in str(caught.value.details())


async def test_a_long_error_is_cut_and_arrives() -> None:
    error = InvalidInputError("🚂" * 10_000, "é" * 10_000, "a" * 10_000_000)
    async with serve(Troubled(error), tls=False) as address, plain_channel(address, CREDENTIAL) as channel:
        stub = profiler_pb2_grpc.ProfilerServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetProfile(profiler_pb2.GetProfileRequest(), timeout=5)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert len(str(caught.value.details()).encode()) <= 512


async def test_calls_beyond_the_limit_are_refused() -> None:
    async with (
        serve(Troubled(), tls=False, limits=ServerLimits(max_calls=16)) as address,
        plain_channel(address, credential_of("ada", Role.VIEWER)) as channel,
    ):
        stub = profiler_pb2_grpc.ProfilerServiceStub(channel)
        streams = [stub.WatchProfiles(profiler_pb2.WatchProfilesRequest()) for _ in range(16)]
        for stream in streams:
            await stream.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetProfile(profiler_pb2.GetProfileRequest(), timeout=5)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        for stream in streams:
            stream.cancel()


async def test_health_and_reflection() -> None:
    async with serve(Troubled(), tls=False) as address, plain_channel(address, CREDENTIAL) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=NAME), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        async for response in reflection.ServerReflectionInfo(iter([request])):
            names = {entry.name for entry in response.list_services_response.service}
            break
        assert {NAME, "grpc.health.v1.Health"} <= names


async def test_an_address_in_use_is_a_clear_error() -> None:
    async with serve(Troubled(), tls=False) as address:
        with pytest.raises(UnavailableError, match="is another process there"):
            await ServiceHost(address, checked()).start()


async def test_following_survives_a_restart_of_the_server() -> None:
    seen: list[int] = []
    lost: list[int] = []

    async def handle(_: object) -> None:
        seen.append(1)

    async with serve(Troubled(), tls=False) as address:
        channel = plain_channel(address, CREDENTIAL)
        stub = profiler_pb2_grpc.ProfilerServiceStub(channel)
        follower = asyncio.create_task(
            follow(
                "profiles",
                lambda: stub.WatchProfiles(profiler_pb2.WatchProfilesRequest()),
                handle,
                lambda: lost.append(1),
            )
        )
        await wait_until_async(lambda: len(seen) == 2)
    await wait_until_async(lambda: lost)
    async with serve(Troubled(), tls=False, address=address):
        await wait_until_async(lambda: len(seen) == 4)
    follower.cancel()
    await asyncio.gather(follower, return_exceptions=True)
    await channel.close()


async def test_an_error_of_the_handler_is_not_swallowed() -> None:
    async def handle(_: object) -> None:
        raise ValueError("mine")

    async with serve(Troubled(), tls=False) as address, plain_channel(address, CREDENTIAL) as channel:
        stub = profiler_pb2_grpc.ProfilerServiceStub(channel)
        with pytest.raises(ValueError, match="mine"):
            await follow("profiles", lambda: stub.WatchProfiles(profiler_pb2.WatchProfilesRequest()), handle)
