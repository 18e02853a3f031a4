"""A machine that changes in place is recorded and replayed like one that does not."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from malletrain.runtime.errors import InvalidInputError, InvariantError
from malletrain.runtime.kernel.flight_recorder import FlightRecorder
from malletrain.runtime.kernel.recording import (
    Moment,
    RecordedMachine,
    Recording,
    recording_from_json,
    replay_recording,
    reproduces,
)


class RefusedError(Exception):
    """No failure."""


class OverflowOfJobError(Exception):
    """Names a job."""

    job_id = "j1"


@dataclass(frozen=True)
class Added:
    """A stimulus."""

    job_id: str
    count: int
    secret: str = ""


@dataclass(frozen=True)
class Passed:
    """A stimulus that changes nothing."""


@dataclass
class Adder:
    """Refuses what is below 0, and has a defect above 100."""

    sums: dict[str, int] = field(default_factory=dict)

    def add(self, stimulus: Added) -> int:
        """Add."""
        if stimulus.count < 0:
            raise RefusedError
        self.sums[stimulus.job_id] = self.sums.get(stimulus.job_id, 0) + stimulus.count
        if self.sums[stimulus.job_id] > 100:
            raise OverflowOfJobError("too much")
        return self.sums[stimulus.job_id]


class RecordedAdder(RecordedMachine[Adder, Added | Passed, int]):
    """The adder; no sum may be 13."""

    service = "adder"
    file_prefix = "adder-stimuli"
    state_type = Adder
    stimulus_types = (Added, Passed)
    refusals = (RefusedError,)

    def advance(self, state: Adder, stimulus: Added | Passed, now: Moment) -> int:
        del now
        return 0 if isinstance(stimulus, Passed) else state.add(stimulus)

    def check(self, before: Adder, result: int) -> None:
        del before
        if result == 13:
            raise InvariantError("the sum is 13")

    def is_recorded(self, stimulus: Added | Passed, result: int) -> bool:
        del result
        return not isinstance(stimulus, Passed)

    def redact_stimulus(self, stimulus: Added | Passed) -> Added | Passed:
        return stimulus if isinstance(stimulus, Passed) else Added(stimulus.job_id, stimulus.count, "<redacted>")


class Driver:
    """An adder with its recorder."""

    def __init__(self, folder: Path, *, validate: bool = True) -> None:
        self.folder = folder
        self.adder = Adder()
        self.recorder = FlightRecorder(folder, RecordedAdder(), validate, min_stimuli=20)
        self.now = 1000.0

    def __call__(self, stimulus: Added | Passed) -> int:
        self.now += 1
        return self.recorder.advance(self.adder, stimulus, Moment(self.now, self.now - 1000))

    def written(self) -> Recording:
        (path,) = self.folder.iterdir()
        assert path.name.startswith("adder-stimuli-1970")
        assert "hunter2" not in path.read_text()
        return recording_from_json(json.loads(path.read_text()), {"adder": RecordedAdder}, "other")


def test_the_last_stimuli_are_written_with_the_state_before_them(tmp_path: Path) -> None:
    drive = Driver(tmp_path / "debug")
    drive(Added("j1", 20))
    for _ in range(77):
        drive(Added("j1", 1, "hunter2"))
        drive(Passed())
    with pytest.raises(RefusedError):
        drive(Added("j1", -1))
    with pytest.raises(OverflowOfJobError):
        drive(Added("j1", 7))
    recording = drive.written()
    assert 20 <= len(recording.stimuli) <= 22
    assert recording.state.sums["j1"] + sum(timed.stimulus.count for timed in recording.stimuli) == 104
    assert (recording.failure.error, recording.failure.job_id) == ("OverflowOfJobError", "j1")
    assert recording.failure.story[-1] == "1157.000 <- Added(job_id='j1', count=7, secret='<redacted>')"
    assert recording.stimuli[-1].now == Moment(1157.0, 157.0)
    for _ in range(2):
        assert reproduces(recording, replay_recording(recording))


def test_a_broken_invariant_is_a_failure_where_invariants_are_checked(tmp_path: Path) -> None:
    drive = Driver(tmp_path / "debug")
    with pytest.raises(InvariantError):
        drive(Added("j1", 13))
    assert reproduces(drive.written(), replay_recording(drive.written()))


def test_a_replay_finds_the_invariant_that_nobody_has_checked(tmp_path: Path) -> None:
    drive = Driver(tmp_path / "debug", validate=False)
    drive(Added("j1", 13))
    with pytest.raises(OverflowOfJobError):
        drive(Added("j1", 100))
    replayed = replay_recording(drive.written())
    assert replayed.first_violation == "stimulus 1: the sum is 13"
    assert reproduces(drive.written(), replayed)


def test_a_stimulus_can_be_taken_back(tmp_path: Path) -> None:
    drive = Driver(tmp_path / "debug")
    drive(Added("j1", 1))
    drive(Added("j2", 1))
    drive.recorder.forget_last()
    with pytest.raises(OverflowOfJobError):
        drive(Added("j1", 100))
    assert [timed.stimulus.job_id for timed in drive.written().stimuli] == ["j1", "j1"]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"format": 2}, "format: expected 1, got 2"),
        ({"service": "baker"}, "service: expected one of adder, got 'baker'"),
        ({"state": {"sums": {"j1": "many"}}}, "state.sums[j1]: expected a whole number, got 'many'"),
        ({"stimuli": [{"unix_seconds": 1.0, "type": "Lost"}]}, "stimuli[0].type: expected one of Added, Passed"),
        ({"stimuli": [{"unix_seconds": 1.0, "type": "Added", "count": 1}]}, "stimuli[0].job_id: expected a value"),
        ({"stimuli": [{"type": "Passed"}]}, "stimuli[0].unix_seconds: expected a value"),
    ],
)
def test_what_is_wrong_with_a_recording_is_named(tmp_path: Path, changes: dict[str, object], error: str) -> None:
    drive = Driver(tmp_path / "debug")
    with pytest.raises(OverflowOfJobError):
        drive(Added("j1", 101))
    (path,) = (tmp_path / "debug").iterdir()
    with pytest.raises(InvalidInputError) as caught:
        recording_from_json(json.loads(path.read_text()) | changes, {"adder": RecordedAdder}, "other")
    assert str(caught.value).startswith(error)
