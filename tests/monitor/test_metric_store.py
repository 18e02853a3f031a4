"""Training metrics in Monitor's database: once each, within limits, through restarts, and for those who may see."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from sqlalchemy import Engine, event

from malletrain.monitor.store import MonitorStore
from malletrain.monitor.training_metrics.history import MAX_NAMES, MAX_POINTS, LoggedValue
from malletrain.monitor.training_metrics.store import LoggedBatch, MetricStore, newest_values
from malletrain.runtime.access.identity import Role
from malletrain.runtime.channel import open_channel
from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.errors import DatabaseUnavailableError
from malletrain.runtime.database.migrating import open_database
from malletrain.v1 import monitor_pb2, monitor_pb2_grpc
from tests.monitor.running import RunningMonitor, running_monitor
from tests.support.access import credential_of
from tests.support.channels import stand_in


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    opened = open_database(DatabaseAddress("monitor", tmp_path / "monitor.db"))
    yield opened
    opened.dispose()


def values(count: int, name: str = "loss", first: int = 1, at: float = 100.0) -> tuple[LoggedValue, ...]:
    return tuple(LoggedValue(name, first + n, at + n, 10 * n, 1.0 / (n + 1)) for n in range(count))


def logged(
    job_id: str = "j1",
    some: tuple[LoggedValue, ...] = (),
    owner: str = "ada",
    reporter: str = "r1",
) -> LoggedBatch:
    return LoggedBatch(job_id, owner, reporter, some)


def counts(store: MetricStore, job_id: str = "j1") -> dict[str, int]:
    found = store.read(job_id).histories
    return {name: sum(point.values for point in points) for name, points in found.items()}


def test_a_history_grows_is_thinned_and_goes_on_after_a_restart(engine: Engine) -> None:
    store, everything = MetricStore(engine), values(1400)
    for begin in range(0, 1400, 100):
        store.add([logged(some=everything[begin : begin + 100])])
        store = MetricStore(engine) if begin == 700 else store
    points = store.read("j1").histories["loss"]
    assert 256 <= len(points) <= MAX_POINTS
    assert sum(point.values for point in points) == 1400
    assert (points[0].value, points[-1].value, points[-1].step) == (1.0, 1 / 1400, 13_990)
    assert store.read("j1").owner == "ada"


def test_values_that_come_again_are_left_out_and_another_reporter_begins_anew(engine: Engine) -> None:
    store = MetricStore(engine)
    store.add([logged(some=values(5)), logged(some=values(8))])
    assert counts(store) == {"loss": 8}
    store.add([logged(some=values(3), reporter="r2")])
    assert counts(store) == counts(MetricStore(engine)) == {"loss": 11}


def test_an_answer_that_was_lost_after_the_rows_were_stored_repeats_nothing(engine: Engine) -> None:
    store = MetricStore(engine)
    store.add([logged(some=values(3))])
    batch = logged(some=values(6))
    fails = [True]

    def lose(_connection: object) -> None:
        if fails.pop() if fails else False:
            raise DatabaseUnavailableError("monitor")

    event.listen(engine, "commit", lose)
    with pytest.raises(DatabaseUnavailableError):
        store.add([batch])
    store.add([batch])
    store.add([batch])
    assert counts(store) == {"loss": 6}


def test_a_job_has_so_many_metrics_at_most(engine: Engine) -> None:
    store = MetricStore(engine)
    many = tuple(LoggedValue(f"m{n:03}", n + 1, 1.0, n, 0.5) for n in range(MAX_NAMES + 9))
    store.add([logged(some=many)])
    assert len(counts(store)) == MAX_NAMES
    store.add([logged(some=(LoggedValue("m000", 100, 2.0, 1, 0.5),))])
    assert counts(store)["m000"] == 2


def test_of_an_owner_those_jobs_go_first_that_were_silent_for_longest(engine: Engine) -> None:
    store = MetricStore(engine, max_owner_metrics=4)
    for number, job_id in enumerate(("j1", "j2", "j3")):
        store.add([logged(job_id, values(1, "a", at=float(number)) + values(1, "b", first=2, at=float(number)))])
    store.add([logged("j9", values(1), owner="bob")])
    assert [bool(counts(store, job_id)) for job_id in ("j1", "j2", "j3", "j9")] == [False, True, True, True]
    assert store.owner("j1") is None


def test_what_waits_for_the_database_is_bounded() -> None:
    batches = [logged(some=values(1000)), logged("j2", values(9)), logged(some=values(900)), logged(some=values(1100))]
    assert [(batch.job_id, len(batch.values)) for batch in newest_values(batches)] == [
        ("j2", 9),
        ("j1", 900),
        ("j1", 1100),
    ]


def test_the_rows_of_a_job_go_with_it(engine: Engine) -> None:
    store = MonitorStore(engine)
    store.metrics.add([logged(some=values(600)), logged("j2", values(2))])
    store.forget(["j1"])
    assert (counts(store.metrics), counts(store.metrics, "j2")) == ({}, {"loss": 2})
    store.metrics.add([logged(some=values(1))])
    assert counts(store.metrics) == {"loss": 1}


def report(*some: monitor_pb2.MetricValue, job_id: str = "j1", reporter: str = "r1") -> monitor_pb2.ReportRequest:
    return monitor_pb2.ReportRequest(job_id=job_id, reporter_id=reporter, slots_per_node=1, metric_values=some)


def metric(number: int, value: float = 0.5, name: str = "loss", step: int | None = None) -> monitor_pb2.MetricValue:
    return monitor_pb2.MetricValue(name=name, number=number, unix_seconds=50.0 + number, step=step, value=value)


async def send(monitor: RunningMonitor, *requests: monitor_pb2.ReportRequest) -> monitor_pb2.ReportResponse:
    """The last response: the stream ends once everything is stored."""
    answers = [answer async for answer in monitor.stub.Report(iter(requests), timeout=20)]
    return answers[-1]


async def ask(monitor: RunningMonitor, **fields: object) -> monitor_pb2.GetMetricHistoryResponse:
    request = monitor_pb2.GetMetricHistoryRequest(**{"job_id": "j1", **fields})  # type: ignore[arg-type]
    return await monitor.stub.GetMetricHistory(request, timeout=20)


def test_what_is_logged_is_answered_also_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_monitor(tmp_path) as monitor:
            told = await send(monitor, report(metric(1, 3.0, step=7), metric(2, 2.0, "acc")), report(metric(3, 1.0)))
            assert told.acknowledged_metrics == 3
            assert not (await ask(monitor, job_id="j9")).histories
        async with running_monitor(tmp_path) as monitor:
            assert (await send(monitor, report(metric(3, 1.0), metric(4, 0.5)))).acknowledged_metrics == 4
            found = (await ask(monitor)).histories
            assert [(one.name, [(point.step, point.value) for point in one.points]) for one in found] == [
                ("acc", [(0, 2.0)]),
                ("loss", [(7, 3.0), (0, 1.0), (0, 0.5)]),
            ]
            (alone,) = (await ask(monitor, names=["loss", "other"], max_points=2)).histories
            assert [(point.value, point.most, point.values) for point in alone.points] == [(3.0, 3.0, 1), (0.5, 1.0, 2)]
            page = await ask(monitor, page_size=1)
            assert ([one.name for one in page.histories], page.next_page_token) == (["acc"], "acc")
            last = await ask(monitor, page_size=1, page_token=page.next_page_token)
            assert ([one.name for one in last.histories], last.next_page_token) == (["loss"], "")
            await monitor.stub.ForgetJobs(monitor_pb2.ForgetJobsRequest(job_ids=["j1"]), timeout=20)
            assert not (await ask(monitor)).histories

    asyncio.run(scenario())


def test_only_its_owner_operators_and_services_are_told_what_a_job_has_logged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_monitor(tmp_path) as monitor:
            monitor.service.budget.note_owners([("j1", "ada")], snapshot=True)
            await send(monitor, report(metric(1)))
            address = stand_in("monitor", monitor.address)
            for user, role, may in (
                ("ada", Role.VIEWER, True),
                ("ada", Role.USER, True),
                ("bob", Role.USER, False),
                ("bob", Role.VIEWER, False),
                ("bob", Role.OPERATOR, True),
            ):
                async with open_channel(address, credential_of(user, role)) as channel:
                    stub: monitor_pb2_grpc.MonitorServiceAsyncStub = monitor_pb2_grpc.MonitorServiceStub(channel)
                    request = monitor_pb2.GetMetricHistoryRequest(job_id="j1")
                    if may:
                        assert (await stub.GetMetricHistory(request, timeout=20)).histories
                        continue
                    with pytest.raises(grpc.aio.AioRpcError, match="belongs to ada") as refused:
                        await stub.GetMetricHistory(request, timeout=20)
                    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ([metric(1, name="")], r"metric_values\[0\].name"),
        ([metric(1, name="ä" * 33)], r"metric_values\[0\].name"),
        ([metric(1, name="a\nb")], r"metric_values\[0\].name"),
        ([metric(1), metric(1)], r"metric_values\[1\].number"),
        ([metric(0)], r"metric_values\[0\].number"),
        ([metric(1, float("nan"))], r"metric_values\[0\].value"),
        ([metric(1, float("inf"))], r"metric_values\[0\].value"),
        ([metric(1, step=-1)], r"metric_values\[0\].step"),
        ([monitor_pb2.MetricValue(name="a", number=1, unix_seconds=float("nan"))], "unix_seconds"),
        ([metric(number + 1) for number in range(1025)], "metric_values"),
    ],
)
def test_a_value_that_can_not_be_is_refused_with_its_field(
    tmp_path: Path, sent: list[monitor_pb2.MetricValue], field: str
) -> None:
    async def scenario() -> None:
        async with running_monitor(tmp_path) as monitor:
            with pytest.raises(grpc.aio.AioRpcError, match=field) as refused:
                await send(monitor, report(*sent))
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"job_id": ""}, "job_id"),
        ({"names": ["a"] * 33}, "names"),
        ({"names": [""]}, r"names\[0\]"),
        ({"max_points": 1}, "max_points"),
        ({"max_points": 513}, "max_points"),
        ({"page_size": 33}, "page_size"),
        ({"page_token": "x" * 65}, "page_token"),
    ],
)
def test_a_request_that_can_not_be_is_refused_with_its_field(
    tmp_path: Path, fields: dict[str, object], field: str
) -> None:
    async def scenario() -> None:
        async with running_monitor(tmp_path) as monitor:
            with pytest.raises(grpc.aio.AioRpcError, match=field) as refused:
                await ask(monitor, **fields)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    asyncio.run(scenario())
