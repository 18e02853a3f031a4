from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest

from malletrain.monitor.machine.progress import FeedUse, RecordColumns, ReportedBatch
from malletrain.monitor.machine.trackers import StoredJob
from malletrain.monitor.store import MonitorStore
from malletrain.runtime.access.identity import Role
from malletrain.runtime.channel import open_channel
from malletrain.runtime.database.errors import DatabaseUnavailableError
from malletrain.v1 import monitor_pb2, monitor_pb2_grpc
from tests.monitor.running import FAST, Reporter, report, request_of, running_monitor
from tests.monitor.trainer import FakeTrainer
from tests.support.access import credential_of
from tests.support.channels import stand_in
from tests.support.clocks import ManualClock


async def test_records_are_counted_acknowledged_and_measured(tmp_path: Path) -> None:
    trainer = FakeTrainer(nodes=2, slots=2)
    trainer.steps(60, 0.1)
    trainer.nodes = 3
    trainer.step(5.1)
    trainer.steps(60, 0.1)
    async with running_monitor(tmp_path) as monitor:
        acknowledged = await report(monitor.stub, [trainer.take()])
        assert acknowledged[-1] == 121
        progress = await monitor.progress()
        assert (progress.samples, progress.nodes, progress.records) == (trainer.processed, 3, 121)
        assert progress.rate == pytest.approx(960)
        assert progress.last_record_unix_seconds == pytest.approx(trainer.now)
        listed = await monitor.stub.ListScalingRecords(monitor_pb2.ListScalingRecordsRequest(), timeout=5)
        (record,) = listed.records
        assert {point.nodes: point.rate for point in record.points} == {2: pytest.approx(640), 3: pytest.approx(960)}
        assert record.scale_up_seconds == pytest.approx(5)
        assert not record.HasField("scale_down_seconds")
        assert [(rescale.from_nodes, rescale.to_nodes) for rescale in record.rescales] == [(2, 3)]


async def test_a_trainer_reports_for_the_job_of_its_token_only(tmp_path: Path) -> None:
    trainer = FakeTrainer()
    trainer.steps(10, 0.1)
    batch = trainer.take("j1")
    own, other = (credential_of(job, Role.JOB, job) for job in ("j1", "j2"))
    async with running_monitor(tmp_path) as monitor:
        for credential, code in ((other, grpc.StatusCode.PERMISSION_DENIED), (own, None)):
            async with open_channel(stand_in("monitor", monitor.address), credential) as channel:
                reported = report(monitor_pb2_grpc.MonitorServiceStub(channel), [batch])
                found = (await asyncio.gather(reported, return_exceptions=True))[0]
            assert (found.code() if isinstance(found, grpc.aio.AioRpcError) else None) == code
            assert (await monitor.progress()).records == (0 if code else 10)


async def test_several_reporters_and_jobs_at_once(tmp_path: Path) -> None:
    trainers = {f"j{number}": FakeTrainer() for number in range(8)}
    async with running_monitor(tmp_path) as monitor:
        for _ in range(5):
            for trainer in trainers.values():
                trainer.steps(20, 0.1)
            await asyncio.gather(*(report(monitor.stub, [trainer.take(job)]) for job, trainer in trainers.items()))
        response = await monitor.stub.GetProgress(monitor_pb2.GetProgressRequest(), timeout=5)
        assert [progress.job_id for progress in response.progress] == sorted(trainers)
        assert {progress.samples for progress in response.progress} == {3200}


async def test_a_sign_of_life_is_answered_with_what_is_stored(tmp_path: Path) -> None:
    trainer = FakeTrainer()
    async with running_monitor(tmp_path) as monitor:
        assert set(await report(monitor.stub, [ReportedBatch("j1", "r1", 0, RecordColumns(), 1)])) == {0}
        assert (await monitor.progress()).job_id == ""
        trainer.steps(10, 0.1)
        await report(monitor.stub, [trainer.take()])
        assert set(await report(monitor.stub, [ReportedBatch("j1", "r1", 0, RecordColumns(), 1)])) == {10}


async def test_what_a_feed_does_for_the_newest_reporter_is_told(tmp_path: Path) -> None:
    first, second = FakeTrainer(), FakeTrainer()
    async with running_monitor(tmp_path) as monitor:
        first.steps(10, 0.1)
        batch = first.take()
        await report(monitor.stub, [batch])
        assert not (await monitor.progress()).HasField("feed")
        alive = ReportedBatch(
            "j1", batch.reporter_id, 0, RecordColumns(), 1, feed=FeedUse(96, 32, 0.004, 4, 2, {2: 480.0})
        )
        await report(monitor.stub, [alive])
        feed = (await monitor.progress()).feed
        assert (feed.received_samples, feed.prepared_samples, feed.cpu_seconds, feed.processes) == (96, 32, 0.004, 4)
        assert (feed.running, [(each.processes, each.rate) for each in feed.rates]) == (2, [(2, 480.0)])
        # Another process is the newest; what the first one says does not count any more.
        second.steps(1, 100.0)
        newer = replace(second.take(), reporter_id="newer", feed=FeedUse(0, 8))
        await report(monitor.stub, [newer])
        await report(monitor.stub, [alive])
        assert (await monitor.progress()).feed == monitor_pb2.FeedReport(prepared_samples=8)


def _bad_requests() -> dict[str, monitor_pb2.ReportRequest]:
    trainer = FakeTrainer()
    trainer.steps(3, 0.1)
    good = request_of(trainer.take())

    def changed(**fields: object) -> monitor_pb2.ReportRequest:
        request = monitor_pb2.ReportRequest()
        request.CopyFrom(good)
        for name, value in fields.items():
            if isinstance(value, list):
                request.batch.ClearField(name)  # type: ignore[arg-type]  # a name that is not a literal
                getattr(request.batch, name).extend(value)
            elif name == "first_sequence":
                setattr(request.batch, name, value)
            else:
                setattr(request, name, value)
        return request

    def with_rates(*rates: tuple[int, float]) -> monitor_pb2.ReportRequest:
        request = changed()
        request.feed.rates.extend(monitor_pb2.PreparingRate(processes=number, rate=rate) for number, rate in rates)
        return request

    def with_feed(**fields: float) -> monitor_pb2.ReportRequest:
        request = changed()
        request.feed.CopyFrom(monitor_pb2.FeedReport(**fields))  # type: ignore[arg-type]  # names by which it is known
        return request

    return {
        "job_id: expected 1 to 256 characters": changed(job_id=""),
        "reporter_id: expected 1 to 256 characters": changed(reporter_id="x" * 257),
        "slots_per_node: expected 1": changed(slots_per_node=0),
        "dropped_records: expected 0": changed(dropped_records=-1),
        "feed.received_samples: expected 0": with_feed(received_samples=-1),
        "feed.prepared_samples: expected 0": with_feed(prepared_samples=2**61),
        "feed.processes: expected 0": with_feed(processes=-1),
        "feed.running: expected 0": with_feed(running=-1),
        "feed.rates: expected at most 16": with_rates(*((number, 1.0) for number in range(1, 18))),
        "feed.rates[1].processes: expected 1": with_rates((1, 1.0), (0, 1.0)),
        "feed.rates[1].processes: expected each number once": with_rates((1, 1.0), (1, 2.0)),
        "feed.rates[0].rate: expected a finite number above 0": with_rates((1, math.inf)),
        "feed.cpu_seconds: expected a finite number, at least 0": with_feed(cpu_seconds=math.nan),
        "batch.first_sequence: expected 1": changed(first_sequence=0),
        "batch.samples: expected as many entries as batch.unix_seconds (3), got 2": changed(samples=[1, 2]),
        "batch.positions: expected as many": changed(positions=[]),
        "batch.workers: expected as many": changed(workers=[1, 1, 1, 1]),
        "batch.unix_seconds[1]: expected seconds since": changed(unix_seconds=[1.0, math.nan, 2.0]),
        "batch.unix_seconds[0]: expected seconds since": changed(unix_seconds=[-1.0, 1.0, 2.0]),
        "batch.unix_seconds[2]: expected seconds since": changed(unix_seconds=[1.0, 2.0, 1e155]),
        "batch.samples[2]: expected 0": changed(samples=[1, 1, -1]),
        "batch.positions[0]: expected -1": changed(positions=[-2, 1, 1]),
        "batch.workers[1]: expected 1": changed(workers=[1, 0, 1]),
    }


BAD_REQUESTS = _bad_requests()


@pytest.mark.parametrize("message", BAD_REQUESTS)
async def test_bad_reports_are_refused_by_field_and_nothing_is_counted(tmp_path: Path, message: str) -> None:
    async with running_monitor(tmp_path) as monitor:
        call = monitor.stub.Report(iter([BAD_REQUESTS[message]]), timeout=10)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [response async for response in call]
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert (caught.value.details() or "").startswith(message)
        assert (await monitor.progress()).records == 0


async def test_a_bad_message_in_mid_stream_ends_the_stream_and_keeps_what_came_before(tmp_path: Path) -> None:
    trainer = FakeTrainer()
    trainer.steps(10, 0.1)
    async with running_monitor(tmp_path) as monitor:
        reporter = Reporter(monitor.stub)
        await reporter.send(trainer.take())
        await reporter.acknowledged(10)
        trainer.steps(10, 0.1)
        await reporter.send(trainer.take("another job"))
        with pytest.raises(grpc.aio.AioRpcError, match="job_id: expected that of the stream's first message"):
            await reporter.acknowledged(20)
        assert (await monitor.progress()).records == 10


async def test_commands_reach_connected_reporters(tmp_path: Path) -> None:
    trainer = FakeTrainer()
    trainer.steps(10, 0.1)
    async with running_monitor(tmp_path) as monitor:
        reporter = Reporter(monitor.stub)
        await reporter.send(trainer.take())
        await reporter.acknowledged(10)
        request = monitor_pb2.SendCommandRequest(job_id="j1", type=monitor_pb2.COMMAND_TYPE_RESCALE_COMING, nodes=3)
        assert (await monitor.stub.SendCommand(request, timeout=5)).reporters == 1
        command = await reporter.command()
        assert (command.type, command.nodes) == (monitor_pb2.COMMAND_TYPE_RESCALE_COMING, 3)
        assert command.id
        await reporter.call.done_writing()
        assert await reporter.read() is None or await reporter.read() is None


async def test_a_command_waits_for_a_reporter_but_not_for_long(tmp_path: Path) -> None:
    clock = ManualClock(100.0)
    async with running_monitor(tmp_path, clock=clock) as monitor:
        for job_id in ("early", "late"):
            request = monitor_pb2.SendCommandRequest(job_id=job_id, type=monitor_pb2.COMMAND_TYPE_STOP)
            assert (await monitor.stub.SendCommand(request, timeout=5)).reporters == 0
        commands: dict[str, list[int]] = {}
        for job_id in ("early", "late"):
            call = monitor.stub.Report(
                iter([request_of(ReportedBatch(job_id, "r1", 0, RecordColumns(), 1))]), timeout=10
            )
            commands[job_id] = [command.type async for response in call for command in response.commands]
            clock.advance(FAST.command_seconds + 1)
        assert commands == {"early": [monitor_pb2.COMMAND_TYPE_STOP], "late": []}


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (monitor_pb2.SendCommandRequest(type=monitor_pb2.COMMAND_TYPE_STOP), "job_id"),
        (monitor_pb2.SendCommandRequest(job_id="j1"), "type"),
        (monitor_pb2.SendCommandRequest(job_id="j1", type=monitor_pb2.COMMAND_TYPE_STOP, nodes=-1), "nodes"),
    ],
)
async def test_bad_commands_are_refused(tmp_path: Path, request_: monitor_pb2.SendCommandRequest, field: str) -> None:
    async with running_monitor(tmp_path) as monitor:
        with pytest.raises(grpc.aio.AioRpcError, match=f"{field}: expected") as caught:
            await monitor.stub.SendCommand(request_, timeout=5)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_watchers_get_all_first_and_then_changes(tmp_path: Path) -> None:
    first, second = FakeTrainer(), FakeTrainer()
    first.steps(60, 0.1)
    async with running_monitor(tmp_path) as monitor:
        await report(monitor.stub, [first.take("j1")])
        progress = monitor.stub.WatchProgress(monitor_pb2.WatchProgressRequest(), timeout=20)
        scaling = monitor.stub.WatchScaling(monitor_pb2.WatchScalingRequest(), timeout=20)
        progress_stream, scaling_stream = aiter(progress), aiter(scaling)
        assert [entry.job_id for entry in (await anext(progress_stream)).progress] == ["j1"]
        assert [record.job_id for record in (await anext(scaling_stream)).records] == ["j1"]
        second.steps(60, 0.1)
        await report(monitor.stub, [second.take("j2")])
        async for message in progress_stream:
            if any(entry.job_id == "j2" and entry.samples == second.processed for entry in message.progress):
                break
        async for change in scaling_stream:
            if any(record.job_id == "j2" and record.points for record in change.records):
                break
        progress.cancel()
        scaling.cancel()


async def test_an_empty_monitor_sends_an_empty_first_message(tmp_path: Path) -> None:
    async with running_monitor(tmp_path) as monitor:
        scaling = monitor.stub.WatchScaling(monitor_pb2.WatchScalingRequest(), timeout=10)
        assert list((await anext(aiter(scaling))).records) == []
        progress = monitor.stub.WatchProgress(monitor_pb2.WatchProgressRequest(), timeout=10)
        assert list((await anext(aiter(progress))).progress) == []
        scaling.cancel()
        progress.cancel()


async def test_a_stall_and_its_end_are_pushed(tmp_path: Path) -> None:
    clock, trainer = ManualClock(100.0), FakeTrainer()
    trainer.steps(20, 0.1)
    async with running_monitor(tmp_path, clock=clock) as monitor:
        await report(monitor.stub, [trainer.take()])
        call = monitor.stub.WatchProgress(monitor_pb2.WatchProgressRequest(), timeout=20)
        stream = aiter(call)
        assert not (await anext(stream)).progress[0].stalled
        clock.advance(FAST.stall_floor_seconds + 1)
        while not (await anext(stream)).progress[0].stalled:
            pass
        trainer.step(61.0)
        await report(monitor.stub, [trainer.take()])
        while (await anext(stream)).progress[0].stalled:
            pass
        call.cancel()


async def test_drain_stores_acknowledges_and_ends_streams(tmp_path: Path) -> None:
    trainer = FakeTrainer()
    trainer.steps(10, 0.1)
    slow = FAST.model_copy(update={"store_seconds": 10.0, "publish_seconds": 10.0})
    async with running_monitor(tmp_path, slow) as monitor:
        reporter = Reporter(monitor.stub)
        await reporter.send(trainer.take())
        request = monitor_pb2.SendCommandRequest(job_id="j1", type=monitor_pb2.COMMAND_TYPE_COMMIT)
        async with asyncio.timeout(10):
            while not (await monitor.stub.SendCommand(request, timeout=5)).reporters:
                pass  # its message has not arrived yet
        watch = aiter(monitor.stub.WatchProgress(monitor_pb2.WatchProgressRequest(), timeout=20))
        await anext(watch)
        await monitor.service.close()
        await reporter.acknowledged(10)
        assert await reporter.read() is None
        assert [message async for message in watch] == []
    async with running_monitor(tmp_path) as monitor:
        assert (await monitor.progress()).samples == trainer.processed


async def test_nothing_is_acknowledged_that_could_not_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = FakeTrainer()
    trainer.steps(10, 0.1)
    tried = asyncio.Event()
    loop = asyncio.get_running_loop()
    write = MonitorStore.write

    def refuse(_store: MonitorStore, _jobs: list[StoredJob]) -> None:
        loop.call_soon_threadsafe(tried.set)
        raise DatabaseUnavailableError("monitor")

    async with running_monitor(tmp_path) as monitor:
        monkeypatch.setattr(MonitorStore, "write", refuse)
        reporter = Reporter(monitor.stub)
        await reporter.send(trainer.take())
        await asyncio.wait_for(tried.wait(), 10)
        reading = asyncio.create_task(reporter.read())
        tried.clear()
        await asyncio.wait_for(tried.wait(), 10)
        assert not reading.done()
        monkeypatch.setattr(MonitorStore, "write", write)
        response = await asyncio.wait_for(reading, 10)
        assert response is not None
        assert response.acknowledged_sequence == 10


async def test_a_job_that_was_to_be_forgotten_during_an_outage_is_gone_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = FakeTrainer()
    trainer.steps(10, 0.1)
    forget = MonitorStore.forget

    def refuse(_store: MonitorStore, _job_ids: list[str]) -> None:
        raise DatabaseUnavailableError("monitor")

    async with running_monitor(tmp_path) as monitor:
        await report(monitor.stub, [trainer.take()])
        monkeypatch.setattr(MonitorStore, "forget", refuse)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await monitor.stub.ForgetJobs(monitor_pb2.ForgetJobsRequest(job_ids=["j1"]), timeout=5)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert not (await monitor.progress()).records
        monkeypatch.setattr(MonitorStore, "forget", forget)
        again = FakeTrainer()
        again.steps(3, 0.1)
        await report(monitor.stub, [again.take()])
    async with running_monitor(tmp_path) as monitor:
        assert (await monitor.progress()).samples == again.processed


async def test_a_reporter_that_vanishes_is_forgotten(tmp_path: Path) -> None:
    trainer = FakeTrainer()
    trainer.steps(10, 0.1)
    async with running_monitor(tmp_path) as monitor:
        reporter = Reporter(monitor.stub)
        await reporter.send(trainer.take())
        await reporter.acknowledged(10)
        reporter.call.cancel()
        request = monitor_pb2.SendCommandRequest(job_id="j1", type=monitor_pb2.COMMAND_TYPE_COMMIT)
        async with asyncio.timeout(10):
            while (await monitor.stub.SendCommand(request, timeout=5)).reporters:
                pass
        again = Reporter(monitor.stub)
        await again.send(ReportedBatch("j1", "r1", 0, RecordColumns(), 1))
        assert (await again.command()).type == monitor_pb2.COMMAND_TYPE_COMMIT
        again.call.cancel()
