"""Watches the services by their public streams and journals, in threads of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import TypeVar

import grpc

from benchmarks.soaking.observations import JobSeen, JournalRow, NodeChange, Observations
from malletrain.caller.credentials import owner_credential
from malletrain.cli.shared.settings import AllSettings
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.runtime.paging import all_pages
from malletrain.v1 import job_manager_pb2, resources_pb2, scavenger_pb2

AnswerT = TypeVar("AnswerT")
_PAUSE_S, _JOURNAL_S, _DEADLINE_S = 0.2, 0.5, 5.0
Clock = Callable[[], float]


def _state(number: int) -> str:
    return resources_pb2.JobState.Name(number)


def journal_row(event: job_manager_pb2.JobEvent, at: float, since: float = 0.0) -> JournalRow:
    """A row as it is kept here."""
    return JournalRow(
        at=at,
        sequence=event.sequence,
        job_id=event.job_id,
        before=_state(event.from_state),
        after=_state(event.to_state),
        nodes=frozenset(event.nodes),
        reason=resources_pb2.JobReason.Name(event.reason_code),
        text=event.reason,
        release_s=event.release_seconds,
        since=since,
        unix_s=event.unix_seconds,
    )


def read_journal(stubs: ServiceStubs, token: str = "") -> Iterator[tuple[job_manager_pb2.JobEvent, str]]:
    """Rows from a page on, each with the token of the page after its own."""
    request = job_manager_pb2.ListJobEventsRequest(page_token=token)
    for page in all_pages(stubs.job_manager.ListJobEvents, request, timeout=_DEADLINE_S):
        for event in page.events:
            yield event, page.next_page_token


class Watcher:
    """Follows streams and journal until it is closed; begins anew whenever a service is away."""

    def __init__(self, settings: AllSettings, seen: Observations, now: Clock) -> None:
        self._settings, self._seen, self._now = settings, seen, now
        self._ending = threading.Event()
        self._calls: set[grpc.Call] = set()
        self._threads = [
            threading.Thread(target=self._again_and_again, args=(follow,), daemon=True)
            for follow in (self._nodes, self._jobs, self._journal)
        ]
        self._newest = 0
        self._page = ""
        self._read = 0.0

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End."""
        self._ending.set()
        for call in list(self._calls):
            call.cancel()
        for thread in self._threads:
            thread.join()

    def _again_and_again(self, follow: Callable[[ServiceStubs], None]) -> None:
        while not self._ending.is_set():
            with closing(ServiceStubs(self._settings, owner_credential(self._settings))) as stubs:
                try:
                    follow(stubs)
                except grpc.RpcError:  # the service is away, or this ends
                    self._ending.wait(_PAUSE_S)

    @contextmanager
    def _cancelled_at_end(self, call: grpc.Call) -> Iterator[None]:
        self._calls.add(call)
        try:
            yield
        finally:
            self._calls.discard(call)

    def _nodes(self, stubs: ServiceStubs) -> None:
        stream = stubs.scavenger.WatchNodes(scavenger_pb2.WatchNodesRequest())
        with self._cancelled_at_end(stream):
            for message in stream:
                joined = tuple(node.name for node in message.joined)
                self._seen.nodes.append(NodeChange(self._now(), message.snapshot, joined, tuple(message.left)))

    def _jobs(self, stubs: ServiceStubs) -> None:
        stream = stubs.job_manager.WatchJobs(job_manager_pb2.WatchJobsRequest(without_progress=True))
        with self._cancelled_at_end(stream):
            for message in stream:
                at = self._now()
                for job in message.jobs:
                    nodes = frozenset({*job.commanded_nodes, *job.confirmed_nodes})
                    self._seen.jobs.append(JobSeen(at, job.id, _state(job.state), nodes))

    def _journal(self, stubs: ServiceStubs) -> None:
        while not self._ending.wait(_JOURNAL_S):
            begin = self._now()
            for event, token in read_journal(stubs, self._page):
                if event.sequence > self._newest:
                    self._newest = event.sequence
                    self._seen.rows.append(journal_row(event, self._now(), self._read))
                self._page = token or self._page
            self._read = begin


def retried(call: Callable[..., AnswerT], deadline: Callable[[], bool], pause: Callable[[float], object]) -> AnswerT:
    """Call until it is answered.

    Raises:
        grpc.RpcError: the deadline has passed.
    """
    once = partial(call, timeout=_DEADLINE_S)
    while True:
        try:
            return once()
        except grpc.RpcError as error:
            if deadline() or error.code() not in (
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.DEADLINE_EXCEEDED,
                grpc.StatusCode.CANCELLED,
                grpc.StatusCode.UNAUTHENTICATED,
            ):
                raise
            pause(_PAUSE_S)
