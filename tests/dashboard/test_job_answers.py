"""What pages ask services about one job, in as many pages as its answer has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from malletrain.dashboard.identities import Viewer
from malletrain.dashboard.pages import job_answers
from malletrain.observer.watching import Watcher
from malletrain.v1 import job_manager_pb2, monitor_pb2, monitor_pb2_grpc

PAGE = 2000
ADA = Viewer("ada", "user", "id of ada", 2e9, "token of ada")
WATCHER = cast(Watcher, SimpleNamespace(channel=lambda _: None))


@dataclass
class Journal:
    """Stands in for JobManager: a journal of so many rows, a page of some at a time.

    Attributes:
        tokens: The tokens of the pages that were asked for.
        metadata: What was shown with each.
    """

    rows: int
    tokens: list[str] = field(default_factory=list)
    metadata: list[Any] = field(default_factory=list)

    async def ListJobEvents(
        self, request: job_manager_pb2.ListJobEventsRequest, metadata: Any, timeout: float
    ) -> job_manager_pb2.ListJobEventsResponse:
        assert (request.job_id, timeout > 0) == ("j000001", True)
        self.tokens.append(request.page_token)
        self.metadata.append(metadata)
        first = int(request.page_token or 0) + 1
        last = min(first + PAGE - 1, self.rows)
        events = [job_manager_pb2.JobEvent(sequence=number) for number in range(first, last + 1)]
        return job_manager_pb2.ListJobEventsResponse(
            events=events, next_page_token=str(last) if last < self.rows else ""
        )


def journal_of(monkeypatch: pytest.MonkeyPatch, journal: Journal, known: Sequence[int] = ()) -> list[int]:
    monkeypatch.setattr(job_answers, "job_manager", lambda _: journal)
    events = [job_manager_pb2.JobEvent(sequence=number) for number in known]
    return [event.sequence for event in asyncio.run(job_answers.journal_of(WATCHER, ADA, "j000001", events))]


def test_a_journal_of_several_pages_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(4500)
    assert journal_of(monkeypatch, journal) == [*range(1, 4501)]
    assert journal.tokens == ["", "2000", "4000"]
    assert journal.metadata == [ADA.metadata] * 3


def test_only_what_follows_the_known_rows_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(12)
    assert journal_of(monkeypatch, journal, range(1, 11)) == [*range(1, 13)]
    assert journal.tokens == ["10"]


def test_the_newest_rows_of_a_long_journal_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(9000)
    assert journal_of(monkeypatch, journal) == [*range(9001 - job_answers.MAX_EVENTS, 9001)]


@dataclass
class Metrics:
    """Stands in for Monitor: one metric to a page, then an error where there is one.

    Attributes:
        names: Names of the metrics.
        error: What follows the first page; None: the others.
    """

    names: Sequence[str]
    error: grpc.StatusCode | None = None

    async def GetMetricHistory(
        self, request: monitor_pb2.GetMetricHistoryRequest, metadata: Any, timeout: float
    ) -> monitor_pb2.GetMetricHistoryResponse:
        assert (request.job_id, metadata, timeout > 0) == ("j000001", ADA.metadata, True)
        place = self.names.index(request.page_token) + 1 if request.page_token else 0
        if place and self.error is not None:
            raise grpc.aio.AioRpcError(self.error, grpc.aio.Metadata(), grpc.aio.Metadata())
        token = self.names[place] if place + 1 < len(self.names) else ""
        history = monitor_pb2.MetricHistory(name=self.names[place])
        return monitor_pb2.GetMetricHistoryResponse(histories=[history], next_page_token=token)


def metrics_of(monkeypatch: pytest.MonkeyPatch, metrics: Metrics) -> list[str]:
    monkeypatch.setattr(monitor_pb2_grpc, "MonitorServiceStub", lambda _: metrics)
    return [one.name for one in asyncio.run(job_answers.metrics_of(WATCHER, ADA, "j000001", 100))]


def test_metrics_of_several_pages_are_read_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert metrics_of(monkeypatch, Metrics(["acc", "loss", "lr"])) == ["acc", "loss", "lr"]


def test_who_may_not_see_metrics_has_none_and_other_errors_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["acc", "loss"]
    assert metrics_of(monkeypatch, Metrics(names, grpc.StatusCode.PERMISSION_DENIED)) == []
    with pytest.raises(grpc.aio.AioRpcError):
        metrics_of(monkeypatch, Metrics(names, grpc.StatusCode.UNAVAILABLE))
