"""The Allocator records minutes, stores them, tells them page by page, and has U beside its bound among its metrics."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest

from malletrain.allocator.history.history_pages import utilization_page
from malletrain.allocator.machine.cluster_cache import CachedProfile, ClusterCache
from malletrain.allocator.problem.planner import JobCurve
from malletrain.allocator.telemetry.metrics import AllocatorMetrics
from malletrain.allocator.utilization.definition import MinuteUse, Utilization, last_hour, utilization_of
from malletrain.allocator.utilization.meter import LATE_S
from malletrain.allocator.utilization.recorder import UtilizationRecorder
from malletrain.allocator.utilization.store import UtilizationStore
from malletrain.model.scaling import ScalingPoint
from malletrain.runtime.config import Addresses, Settings
from malletrain.runtime.database.migrating import open_database
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.kernel.peers import Peers
from malletrain.runtime.metrics.service_metrics import ServiceMetrics
from malletrain.v1 import allocator_pb2, monitor_pb2
from tests.support.access import CREDENTIAL
from tests.support.builders import cached_job, plannable_nodes
from tests.support.channels import knowing_stand_ins
from tests.support.clocks import SetClock
from tests.support.metrics import read
from tests.support.postgresql import Locate
from tests.support.stand_ins import StandInMonitor, serve

START = 1_000_000_020.0
CURVE = JobCurve((ScalingPoint(1, 10.0), ScalingPoint(4, 40.0)), 1.0, 1.0)


def minute(place: int, trained: float = 1.0) -> MinuteUse:
    return MinuteUse(START + 60.0 * place, 3.5, trained, 2.0, 4.0)


class Recording:
    """A recorder beside a stand-in for Monitor, on a clock that is set."""

    def __init__(self, peers: Peers, store: UtilizationStore, monitor: StandInMonitor) -> None:
        self.clock = SetClock()
        self.clock.offset = START + 5.0
        self.cluster = ClusterCache()
        self.monitor = monitor
        self.store = store
        self.recorder = UtilizationRecorder(lambda: self.cluster, peers, store, self.clock)

    def know(self, *names: str) -> None:
        """Four idle nodes, and a job on some of them; without any, no job."""
        job = cached_job("a", *names)
        self.cluster.update_nodes(plannable_nodes("n1", "n2", "n3", "n4"), snapshot=True)
        self.cluster.update_jobs([job] if names else [], snapshot=True)
        self.cluster.update_profiles([CachedProfile("a", CURVE)])

    def live(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.passed += 1.0
            self.recorder.look()


@asynccontextmanager
async def recording(folder: Path, store: UtilizationStore) -> AsyncIterator[Recording]:
    monitor = StandInMonitor()
    async with serve(monitor) as address:
        settings = knowing_stand_ins(Settings(state_dir=folder, addresses=Addresses(monitor=address)))
        peers = Peers(settings, CREDENTIAL)
        try:
            yield Recording(peers, store, monitor)
        finally:
            await peers.close()


@pytest.fixture
def store(locate: Locate) -> UtilizationStore:
    return UtilizationStore(open_database(locate("allocator")))


async def test_minutes_are_recorded_by_what_jobs_have_and_by_what_monitor_counts(
    store: UtilizationStore, tmp_path: Path
) -> None:
    async with recording(tmp_path, store) as found:
        found.know()
        found.live(1)
        found.know("n1", "n2")
        found.monitor.progress["a"] = monitor_pb2.Progress(job_id="a", samples=600)
        stall = monitor_pb2.MeasuredRescale(from_nodes=1, to_nodes=2, stall_seconds=30, unix_seconds=START + 90)
        found.monitor.scaling["a"] = monitor_pb2.ScalingRecord(job_id="a", rescales=[stall])
        found.live(119)
        await found.recorder.work_out()
        assert found.recorder.newest == ()
        found.live(int(LATE_S))
        await found.recorder.work_out()
        # In 178 s it has trained 600 samples, where its curve gives 20/s but for the first half of this minute.
        (known,) = found.recorder.newest
        assert (known.start, known.nodes, known.free, known.static) == (START + 60.0, 4.0, 2400.0, 2400.0)
        assert known.trained == pytest.approx(30 * 20 * 600 / (20 * (178 - 30)), rel=0.01)
        await found.recorder.flush()
        assert store.since(0.0) == [known]


@pytest.mark.parametrize(("trained", "expected"), [(0, 0.0), (600, 600.0)])
async def test_a_job_that_was_there_before_the_recorder_is_counted_from_its_first_minute_on(
    store: UtilizationStore, tmp_path: Path, trained: int, expected: float
) -> None:
    async with recording(tmp_path, store) as found:
        found.know("n1", "n2")
        found.monitor.progress["a"] = monitor_pb2.Progress(job_id="a", samples=100_000)
        found.live(55)
        await found.recorder.work_out()
        assert found.recorder.newest == ()
        found.monitor.progress["a"] = monitor_pb2.Progress(job_id="a", samples=100_000 + trained)
        found.live(60 + int(LATE_S))
        await found.recorder.work_out()
        (known,) = found.recorder.newest
        assert known.trained == pytest.approx(60 * expected / (60 + LATE_S), rel=0.01)


async def test_while_monitor_is_away_minutes_wait(store: UtilizationStore, tmp_path: Path) -> None:
    async with recording(tmp_path, store) as found:
        found.know("n1", "n2")
        found.monitor.is_away = True
        found.live(400)
        with pytest.raises(grpc.aio.AioRpcError):
            await found.recorder.work_out()
        assert found.recorder.newest == ()
        found.monitor.is_away = False
        await found.recorder.work_out()
        assert [known.start for known in found.recorder.newest] == [START + 60.0 * place for place in (1, 2, 3, 4)]


async def test_minutes_that_a_clock_shows_twice_count_once(store: UtilizationStore, tmp_path: Path) -> None:
    async with recording(tmp_path, store) as found:
        found.know("n1", "n2")
        for _ in range(2):
            found.live(400)
            await found.recorder.work_out()
            found.clock.offset -= 300.0
        starts = [known.start for known in found.recorder.newest]
        assert starts == sorted(set(starts))
        await found.recorder.flush()
        assert [known.start for known in store.since(0.0)] == starts


async def test_before_services_are_heard_nothing_is_recorded(store: UtilizationStore, tmp_path: Path) -> None:
    async with recording(tmp_path, store) as found:
        found.live(400)
        await found.recorder.work_out()
        assert found.recorder.newest == ()


async def test_a_recorder_goes_on_where_an_earlier_one_has_ended(store: UtilizationStore, tmp_path: Path) -> None:
    store.add([minute(-200), minute(-2), minute(-1)])
    async with recording(tmp_path, store) as found:
        assert found.recorder.newest == (minute(-2), minute(-1))


def test_the_store_replaces_minutes_and_keeps_the_newest(locate: Locate) -> None:
    store = UtilizationStore(open_database(locate("allocator")), minutes_kept=3)
    store.add([minute(0), minute(1)])
    store.add([minute(1, 0.5), minute(2), minute(3)])
    store.add([])
    assert store.since(0.0) == [minute(1, 0.5), minute(2), minute(3)]
    assert store.since(START + 61.0, 1) == [minute(2)]


def test_pages_follow_each_other_until_the_end(store: UtilizationStore) -> None:
    store.add([minute(place) for place in range(5)])
    request = allocator_pb2.ListUtilizationRequest(since_unix_seconds=START + 1, page_size=2)
    found: list[float] = []
    while True:
        page = utilization_page(store, request)
        found += [float(entry.unix_seconds) for entry in page.minutes]
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert found == [START + 60.0 * place for place in range(1, 5)]
    assert page.minutes[0].static_samples == 4.0


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"page_size": -1}, "page_size"),
        ({"page_size": 10_001}, "page_size"),
        ({"page_token": "x"}, "page_token"),
        ({"page_token": "9" * 19}, "page_token"),
        ({"since_unix_seconds": math.nan}, "since_unix_seconds"),
        ({"since_unix_seconds": math.inf}, "since_unix_seconds"),
    ],
)
def test_pages_that_can_not_be_asked_for_are_refused(
    store: UtilizationStore, asked: dict[str, float | str], field: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        utilization_page(store, allocator_pb2.ListUtilizationRequest(**asked))  # type: ignore[arg-type]
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("minutes", "expected"),
    [
        ([minute(0), minute(1, 0.0)], (0.125, 0.5, 120.0)),
        ([MinuteUse(START, 3.0, 0.0, 0.0, 0.0)], (math.nan, math.nan, 60.0)),
        ([], (math.nan, math.nan, 0.0)),
    ],
)
async def test_u_and_its_bound_are_gauges(minutes: Sequence[MinuteUse], expected: tuple[float, ...]) -> None:
    def told() -> Utilization | None:
        return utilization_of(last_hour(minutes, START + 120.0))

    service, metrics = ServiceMetrics(), AllocatorMetrics(told)
    metrics.register(service)
    found = await read(service)
    names = ("utilization_efficiency", "utilization_efficiency_bound", "utilization_seconds")
    assert tuple(found[f"malletrain_allocator_{name}",] for name in names) == pytest.approx(expected, nan_ok=True)
