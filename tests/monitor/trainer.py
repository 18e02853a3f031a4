"""A fake trainer: makes the records of a job that runs, rescales and rolls back."""

from __future__ import annotations

from collections.abc import Callable

from malletrain.monitor.machine.progress import NO_POSITION, ProgressRecord, RecordColumns, ReportedBatch


class FakeTrainer:
    """Writes records with exact times; hands them over in batches."""

    def __init__(self, *, nodes: int = 1, slots: int = 1, per_node: int = 32, start: float = 1000.0) -> None:
        self.now = start
        self.nodes = nodes
        self.slots = slots
        self.per_node = per_node
        self.position = 0
        self.positioned = True
        self.reporter_id = "r1"
        self.sequence = 0
        self.processed = 0
        self._pending: list[ProgressRecord] = []
        self.first = 1

    def step(self, seconds: float) -> None:
        samples = self.per_node * self.nodes
        self.now += seconds
        self.position += samples
        self.processed += samples
        self.sequence += 1
        position = self.position if self.positioned else NO_POSITION
        self._pending.append(ProgressRecord(self.now, samples, position, self.nodes * self.slots))

    def steps(self, count: int, seconds: float | Callable[[], float]) -> None:
        for _ in range(count):
            self.step(seconds() if callable(seconds) else seconds)

    def new_reporter(self, reporter_id: str) -> None:
        assert not self._pending, "take the batch of the reporter before"
        self.reporter_id, self.sequence, self.first = reporter_id, 0, 1

    def drop(self, count: int, seconds: float) -> None:
        """Steps whose records are lost."""
        assert not self._pending
        self.steps(count, seconds)
        self._pending.clear()
        self.first = self.sequence + 1

    def take(self, job_id: str = "j1", dropped: int = 0) -> ReportedBatch:
        batch = ReportedBatch(
            job_id, self.reporter_id, self.first, RecordColumns.of(self._pending), self.slots, dropped
        )
        self._pending, self.first = [], self.sequence + 1
        return batch
