"""Without positions: what counts is what the present model has seen, as far as that can be known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.monitor.machine.progress import ReportedBatch
from malletrain.monitor.machine.trackers import JobTracker
from malletrain.monitor.settings import MonitorSettings
from malletrain.monitor.wire import parse_report, progress_message, scaling_message
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import monitor_pb2
from tests.monitor.trainer import FakeTrainer

SETTINGS = MonitorSettings().options()


class Job:
    """A job that trains 32 samples a step."""

    def __init__(self, *, positioned: bool = False) -> None:
        self.trainer = FakeTrainer()
        self.trainer.positioned = positioned
        self.tracker = JobTracker("j1", SETTINGS, now=0.0)

    def batch(self, steps: int, lineage: str) -> ReportedBatch:
        self.trainer.steps(steps, 0.5)
        return replace(self.trainer.take(), lineage=lineage)

    def train(self, steps: int, lineage: str) -> None:
        self.tracker.add(self.batch(steps, lineage), now=1.0)

    @property
    def counted(self) -> tuple[int, int, bool]:
        message = progress_message(self.tracker, 1.0)
        return message.samples, message.samples_lost, message.positions_known


@pytest.mark.parametrize("steps", [3, 100])
def test_a_start_from_disk_without_a_position_begins_at_zero(steps: int) -> None:
    job = Job()
    job.train(100, "s/1")
    assert job.counted == (3200, 0, False)
    job.trainer.new_reporter("r2")
    job.train(steps, "s/2")
    assert job.counted == (32 * steps, 3200, False)


def test_a_worker_that_has_the_model_from_others_goes_on() -> None:
    job = Job()
    job.train(100, "s/1")
    job.trainer.new_reporter("r2")
    job.train(10, "s/1")
    assert job.counted == (3520, 0, False)


def test_a_position_with_the_first_record_shows_that_it_resumed() -> None:
    job = Job(positioned=True)
    job.train(100, "s/1")
    job.trainer.new_reporter("r2")
    job.trainer.position -= 320
    job.train(1, "s/2")
    assert job.counted == (2912, 320, True)
    job.trainer.positioned = False  # one is enough
    job.train(10, "s/2")
    assert job.counted == (3232, 320, True)
    job.trainer.new_reporter("r3")
    job.train(1, "s/3")
    assert job.counted == (32, 3552, False)


def test_reporters_of_earlier_versions_are_added_up() -> None:
    job = Job()
    job.train(100, "")
    job.trainer.new_reporter("r2")
    job.train(10, "s/2")
    assert job.counted == (3520, 0, False)


def test_records_that_arrive_after_the_next_lineage_has_begun_are_not_its_own() -> None:
    job = Job()
    job.train(100, "s/1")
    late = job.batch(5, "s/1")
    job.trainer.new_reporter("r2")
    job.train(10, "s/2")
    job.tracker.add(late, now=2.0)
    assert job.counted == (320, 3360, False)


def test_it_is_known_after_a_restart_of_monitor() -> None:
    job = Job()
    job.train(100, "s/1")
    job.tracker = JobTracker("j1", SETTINGS, 0.0, job.tracker.stored())
    job.trainer.new_reporter("r2")
    job.train(10, "s/2")
    assert job.counted == (320, 3200, False)


def test_saves_are_told_as_the_newest_reporter_said_last() -> None:
    job = Job()
    job.train(1, "s/1")
    assert not progress_message(job.tracker, 1.0).HasField("saves")
    request = monitor_pb2.ReportRequest(job_id="j1", reporter_id="r1", slots_per_node=1)
    request.saves.failures, request.saves.reason = 2, "No space left on device"
    request.saves.rescale_seconds = 90.0
    job.tracker.add(parse_report(request), now=1.0)
    assert progress_message(job.tracker, 1.0).saves == request.saves
    assert scaling_message(job.tracker.scaling()).checkpoint_seconds == 90.0
    job.train(1, "s/1")
    job.trainer.new_reporter("r2")
    job.train(1, "s/2")
    assert progress_message(job.tracker, 1.0).saves == request.saves, "the next process has not saved yet"
    request.reporter_id, request.saves.failures = "r2", 0
    job.tracker.add(parse_report(request), now=1.0)
    assert progress_message(job.tracker, 1.0).saves == monitor_pb2.SaveReport(rescale_seconds=90.0)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("lineage", {"lineage": "x" * 257}),
        ("lineage", {"lineage": "a\0b"}),
        ("saves.failures", {"saves": monitor_pb2.SaveReport(failures=-1)}),
        ("saves.rescale_seconds", {"saves": monitor_pb2.SaveReport(rescale_seconds=-1.0)}),
        ("saves.rescale_seconds", {"saves": monitor_pb2.SaveReport(rescale_seconds=float("nan"))}),
        ("saves.reason", {"saves": monitor_pb2.SaveReport(failures=1, reason="x" * 257)}),
    ],
)
def test_what_is_out_of_range_is_refused(field: str, changes: dict[str, object]) -> None:
    request = monitor_pb2.ReportRequest(job_id="j1", reporter_id="r1", slots_per_node=1, **changes)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=field):
        parse_report(request)
