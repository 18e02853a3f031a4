"""Profiler over gRPC, with a real Monitor and a stand-in for JobManager."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import grpc.aio
import pytest

from malletrain.profiler.machine.family_store import FamilyMember, FamilyStore
from malletrain.profiler.machine.profile_scheduler import ProfilingState
from malletrain.profiler.service import create
from malletrain.profiler.settings import ProfilerSettings
from malletrain.profiler.store import ProfilerStore
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Addresses, Settings
from malletrain.runtime.database.migrating import open_database
from malletrain.runtime.errors import InvariantError
from malletrain.v1 import profiler_pb2, resources_pb2
from tests.monitor.running import report, running_monitor
from tests.monitor.trainer import FakeTrainer
from tests.profiler.peers import NOWHERE, running_profiler
from tests.support.access import CREDENTIAL
from tests.support.builders import job_message
from tests.support.channels import knowing_stand_ins
from tests.support.stand_ins import StandInJobManager, serve

PRIOR = profiler_pb2.CURVE_SOURCE_PRIOR
DECLARED = profiler_pb2.CURVE_SOURCE_DECLARED
MEASURED = profiler_pb2.CURVE_SOURCE_MEASURED
EXTRAPOLATED = profiler_pb2.CURVE_SOURCE_EXTRAPOLATED


def rescaling_trainer() -> FakeTrainer:
    trainer = FakeTrainer(nodes=1)
    trainer.steps(60, 0.1)
    trainer.nodes = 2
    trainer.step(4.1)
    trainer.steps(60, 0.1)
    return trainer


def rates(profile: profiler_pb2.Profile) -> dict[int, float]:
    return {point.nodes: point.rate for point in profile.points}


async def test_a_profile_goes_from_prior_to_measured_while_its_job_runs(tmp_path: Path) -> None:
    peer = StandInJobManager()
    async with (
        running_monitor(tmp_path) as monitor,
        serve(peer) as jobs,
        running_profiler(jobs, monitor.address) as profiler,
    ):
        with profiler.watch() as watch:
            assert await watch.next() == {}
            peer.put(job_message("j1"))
            before = await watch.next_of("j1")
            assert [point.source for point in before.points] == [PRIOR] * 3
            assert (before.scale_up_seconds, before.scale_up_source) == (2, PRIOR)
            await report(monitor.stub, [rescaling_trainer().take()])
            after = await watch.next_of("j1")
            while after.points[1].source != MEASURED:
                after = await watch.next_of("j1")
            assert rates(after) == {
                1: pytest.approx(320),
                2: pytest.approx(640),
                4: pytest.approx(1280, rel=0.08),
            }
            assert [point.source for point in after.points] == [MEASURED, MEASURED, EXTRAPOLATED]
            assert after.scale_up_seconds == pytest.approx(4)
            assert after.scale_up_source == MEASURED
            assert after.scale_down_source == PRIOR
            assert await profiler.profile("j1") == after


async def test_after_a_restart_the_first_message_holds_what_was_measured(tmp_path: Path) -> None:
    peer = StandInJobManager()
    peer.put(job_message("j1"))
    async with serve(peer) as jobs, running_monitor(tmp_path) as monitor:
        await report(monitor.stub, [rescaling_trainer().take()])
        for _ in range(2):
            async with running_profiler(jobs, monitor.address) as profiler:
                with profiler.watch() as watch:
                    assert (await watch.next())["j1"].points[0].source == MEASURED


async def test_declared_figures_are_served(tmp_path: Path) -> None:
    peer = StandInJobManager()
    curve = [resources_pb2.ScalingPoint(nodes=1, rate=100), resources_pb2.ScalingPoint(nodes=4, rate=300)]
    peer.put(job_message("j1", curve=curve, scale_up_seconds=18, scale_down_seconds=0))
    async with (
        running_monitor(tmp_path) as monitor,
        serve(peer) as jobs,
        running_profiler(jobs, monitor.address) as profiler,
    ):
        with profiler.watch() as watch:
            profile = (await watch.next())["j1"]
        assert rates(profile) == {1: 100, 4: 300}
        assert {point.source for point in profile.points} == {DECLARED}
        assert (profile.scale_up_seconds, profile.scale_up_source) == (18, DECLARED)
        assert (profile.scale_down_seconds, profile.scale_down_source) == (0, DECLARED)


async def test_peers_that_restart_are_found_again_and_nothing_is_forgotten_meanwhile(tmp_path: Path) -> None:
    peer = StandInJobManager()
    peer.put(job_message("j1"))
    trainer = FakeTrainer()
    trainer.steps(60, 0.05)
    async with AsyncExitStack() as stack:
        first_peers = await stack.enter_async_context(AsyncExitStack())
        monitor = await first_peers.enter_async_context(running_monitor(tmp_path))
        jobs = await first_peers.enter_async_context(serve(peer))
        await report(monitor.stub, [rescaling_trainer().take()])
        profiler = await stack.enter_async_context(running_profiler(jobs, monitor.address))
        watch = stack.enter_context(profiler.watch())
        assert (await watch.next())["j1"].points[0].source == MEASURED
        await first_peers.aclose()
        assert (await profiler.profile("j1")).points[0].source == MEASURED
        monitor = await stack.enter_async_context(running_monitor(tmp_path, address=monitor.address))
        await stack.enter_async_context(serve(peer, address=jobs))
        peer.put(job_message("j2"))
        await watch.next_of("j2")
        await report(monitor.stub, [trainer.take("j2")])
        while (await watch.next_of("j2")).points[0].source != MEASURED:
            pass
        assert rates(await profiler.profile("j2"))[1] == pytest.approx(640)
        assert (await profiler.profile("j1")).points[0].source == MEASURED


async def test_jobs_that_end_are_forgotten_but_for_their_last_curve(tmp_path: Path) -> None:
    peer = StandInJobManager()
    peer.put(job_message("j1"))
    async with (
        running_monitor(tmp_path) as monitor,
        serve(peer) as jobs,
        running_profiler(jobs, monitor.address) as profiler,
    ):
        with profiler.watch() as watch:
            assert list(await watch.next()) == ["j1"]
            peer.put(job_message("j1", state=resources_pb2.JOB_STATE_COMPLETED))
            peer.put(job_message("j2"))
            await watch.next_of("j2")
            with profiler.watch() as later:
                assert list(await later.next()) == ["j2"]
        assert (await profiler.profile("j1")).job_id == "j1"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await profiler.profile("j3")
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.aio.AioRpcError, match="job_id: expected a job identifier") as caught:
            await profiler.profile("")
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_without_monitor_jobs_get_priors_after_a_moment() -> None:
    peer = StandInJobManager()
    peer.put(job_message("j1"))
    async with (
        serve(peer) as jobs,
        running_profiler(jobs, NOWHERE, ProfilerSettings(snapshot_seconds=0.2)) as profiler,
    ):
        with profiler.watch() as watch:
            assert (await watch.next())["j1"].points[0].source == PRIOR


async def test_without_job_manager_there_is_no_profile_and_the_drain_ends_watchers(tmp_path: Path) -> None:
    async with (
        running_monitor(tmp_path) as monitor,
        running_profiler(NOWHERE, monitor.address) as profiler,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await profiler.profile("j1")
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        with profiler.watch() as watch:
            waiting = asyncio.create_task(watch.next())
            await profiler.service.close()
            with pytest.raises(StopAsyncIteration):
                await waiting


async def test_a_state_that_contradicts_itself_ends_the_service_where_that_is_checked(tmp_path: Path) -> None:
    store = ProfilerStore(open_database(Settings(state_dir=tmp_path).database("profiler")))
    twice = (FamilyMember("j0", ()), FamilyMember("j0", ()))
    store.write(store.changes(ProfilingState(), FamilyStore(8, {"f": twice}), {}))
    store.close()
    peer = StandInJobManager()
    async with serve(peer) as jobs:
        addresses = Addresses(job_manager=jobs, monitor=NOWHERE, scavenger=NOWHERE)
        settings = knowing_stand_ins(Settings(state_dir=tmp_path, addresses=addresses, validate_state=True))
        service = create(settings, ProfilerSettings(snapshot_seconds=0), SystemClock(), CREDENTIAL)
        try:
            with pytest.raises(ExceptionGroup) as caught:
                await asyncio.wait_for(service.run(), 20)
        finally:
            await service.close()
    assert caught.group_contains(InvariantError, match="job j0: is more than once in family f")
