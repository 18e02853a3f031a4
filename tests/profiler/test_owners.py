"""Profiler over gRPC, called by two users, a viewer, an operator and a service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from malletrain.runtime.access.identity import Role
from malletrain.v1 import profiler_pb2, profiler_pb2_grpc
from tests.monitor.running import running_monitor
from tests.profiler.peers import ProfileWatch, RunningProfiler, running_profiler
from tests.support.access import credential_of
from tests.support.builders import job_message
from tests.support.channels import plain_channel
from tests.support.stand_ins import StandInJobManager, serve


@asynccontextmanager
async def profiler_with_jobs(tmp_path: Path) -> AsyncIterator[RunningProfiler]:
    """j1 is a job of ada."""
    peer = StandInJobManager()
    peer.put(job_message("j1", owner="ada", family="resnet"))
    async with (
        running_monitor(tmp_path) as monitor,
        serve(peer) as jobs,
        running_profiler(jobs, monitor.address) as profiler,
    ):
        with profiler.watch() as watch:
            assert (await watch.next_of("j1")).family == "resnet", "services see all"
        yield profiler


@pytest.mark.parametrize(
    ("user", "role", "may"),
    [
        ("ada", Role.USER, True),
        ("bob", Role.USER, False),
        ("vera", Role.VIEWER, False),
        ("olga", Role.OPERATOR, True),
        ("allocator", Role.SERVICE, True),
    ],
)
async def test_only_owner_operators_and_services_have_a_job_profiled(
    tmp_path: Path, user: str, role: Role, may: bool
) -> None:
    async with (
        profiler_with_jobs(tmp_path) as profiler,
        plain_channel(profiler.address, credential_of(user, role)) as channel,
    ):
        stub: profiler_pb2_grpc.ProfilerServiceAsyncStub = profiler_pb2_grpc.ProfilerServiceStub(channel)
        seen = (await stub.GetProfile(profiler_pb2.GetProfileRequest(job_id="j1"))).profile
        assert [point.nodes for point in seen.points] == [1, 2, 4]
        assert seen.family == ("resnet" if may else "")
        with ProfileWatch(stub) as watch:
            assert (await watch.next_of("j1")).family == seen.family
        start = stub.StartProfile(profiler_pb2.StartProfileRequest(job_id="j1"))
        if may:
            assert (await start).profile.job_id == "j1"
            return
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await start
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert (caught.value.details() or "").startswith(
            "job j1 belongs to ada: only its owner and operators may have it profiled"
            if role is Role.USER
            else "StartProfile needs the role user"
        )
        assert not (await profiler.profile("j1")).HasField("run"), "nothing was queued"
