"""What is recorded of each job leads to the state and to the failures of the machine with all jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.cli.operate.debug import read_recording
from malletrain.model.scaling import ScaleCommand
from malletrain.monitor.job_recorder import HistoryLimits, JobRecorder
from malletrain.monitor.machine.machine import MonitorMachine
from malletrain.monitor.machine.progress import (
    MAX_COUNT,
    FeedUse,
    PhaseSeen,
    ProgressRecord,
    RecordColumns,
    ReportedBatch,
    ReporterSequences,
    SaveState,
    advance_steadily,
)
from malletrain.monitor.machine.recording import RecordedMonitor
from malletrain.monitor.machine.stimuli import (
    BatchesReported,
    JobsForgotten,
    JobsKept,
    JobsPlaced,
    PublishDue,
    ScalesCommanded,
    Stimulus,
)
from malletrain.monitor.machine.throughput import JobSpan, ThroughputMeter
from malletrain.monitor.machine.trackers import JobTracker, JobTrackers
from malletrain.monitor.settings import MonitorSettings
from malletrain.monitor.store import MonitorStore
from malletrain.monitor.wire import MAX_POSITION, MAX_SAMPLES
from malletrain.runtime.config import Settings
from malletrain.runtime.database.migrating import open_database
from malletrain.runtime.errors import InvariantError
from malletrain.runtime.kernel.documents import from_document, to_document
from malletrain.runtime.kernel.recording import Moment, Recording, TimedStimulus, replay_recording, reproduces
from tests.monitor.trainer import FakeTrainer

OPTIONS = MonitorSettings(window_steps=32, stall_floor_seconds=20.0, rest_seconds=60.0).options()
JOBS = ("j1", "j2")


class Driver:
    """A machine that checks its invariants, its recorder, and a trainer of each job."""

    def __init__(self, folder: Path, limits: HistoryLimits | None = None, *, validate: bool = True) -> None:
        self.machine = MonitorMachine(JobTrackers(OPTIONS))
        self.recorder = JobRecorder(folder / "debug", validate, limits or HistoryLimits())
        self.now = 0.0
        self._trainers = {job_id: FakeTrainer() for job_id in JOBS}
        self._sent: dict[str, list[ReportedBatch]] = {job_id: [] for job_id in JOBS}
        self._commands = dict.fromkeys(JOBS, 0)

    def tell(self, stimulus: Stimulus) -> None:
        self.recorder.advance(self.machine, stimulus, Moment(1000.0 + self.now, self.now))

    def report(self, *batches: ReportedBatch) -> None:
        self.tell(BatchesReported(batches))

    def steps(self, job_id: str, count: int, seconds: float = 0.1) -> None:
        """A job trains and reports."""
        self._trainers[job_id].steps(count, seconds)
        self.report(self._trainers[job_id].take(job_id))

    def act(self, action: str, job_id: str, value: int) -> None:
        """What may happen to jobs: they train, rescale, roll back, repeat themselves, and are forgotten."""
        trainer, sent = self._trainers[job_id], self._sent[job_id]
        self.now += value / 4
        match action:
            case "report":
                trainer.steps(value, 0.5)
                trainer.step(0.1 * value)
                extras = {"feed": FeedUse(value, 0), "saves": SaveState(value, "disk full"), "dropped_records": value}
                sent.append(replace(trainer.take(job_id), **(extras if value % 3 else {})))
                # The other job's last one is sent again with it.
                self.report(sent[-1], *(others[-1] for others in self._sent.values() if others is not sent and others))
            case "again" if sent:
                self.report(sent[-1 - value % len(sent)])
            case "late" if sent:
                old = sent[-1 - value % len(sent)]
                self.report(replace(old, first_sequence=old.first_sequence + value))
            case "phase":
                phase = PhaseSeen("evaluate", float(value)) if value % 2 else None
                self.report(ReportedBatch(job_id, trainer.reporter_id, 0, RecordColumns(), 1, phase=phase))
            case "scale":
                before, trainer.nodes = trainer.nodes, 1 + value % 4
                self._commands[job_id] += 1
                command = ScaleCommand(self._commands[job_id], trainer.now, before, trainer.nodes)
                self.tell(ScalesCommanded(((job_id, command),)))
            case "roll back":
                trainer.position = max(0, trainer.position - 50 * value)
            case "positions":
                trainer.positioned = bool(value % 2)
            case "reporter":
                trainer.new_reporter(f"r{trainer.now}")
            case "publish":
                self.tell(PublishDue())
            case "wait":
                self.now += 5 * value
            case "place":
                self.tell(JobsPlaced(((job_id, JobSpan(value % 5, (None, 0, 1, 2)[value % 4])),)))
            case "keep":
                self.tell(JobsKept((job_id,)))
            case "forget":
                self.tell(JobsForgotten((job_id,)))


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(("report",) * 4 + ("again", "late", "phase", "scale", "roll back", "positions", "reporter"))
        | st.sampled_from(("publish", "publish", "wait", "place", "keep", "forget")),
        st.sampled_from(JOBS),
        st.integers(0, 40),
    ),
    max_size=40,
)


def replayed(machine: MonitorMachine, stimuli: Sequence[TimedStimulus[Stimulus]]) -> MonitorMachine:
    recorded = RecordedMonitor()
    after = from_document(MonitorMachine, to_document(machine))
    assert after == machine
    for timed in stimuli:
        stimulus = from_document(type(timed.stimulus), to_document(timed.stimulus))
        recorded.check(after, recorded.advance(after, stimulus, timed.now))
    return after


@settings(max_examples=150, deadline=None)
@given(ACTIONS, st.sampled_from((HistoryLimits(), HistoryLimits(stimuli=3, publications=2))))
def test_the_history_of_a_job_leads_to_its_state(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, str, int]], limits: HistoryLimits
) -> None:
    drive = Driver(tmp_path_factory.getbasetemp(), limits)
    for action in actions:
        drive.act(*action)
    for job_id in JOBS:
        if (history := drive.recorder.history(job_id)) is not None:
            assert replayed(*history) == drive.machine.part((job_id,))
            assert replayed(*history) == drive.machine.part((job_id,)), "a replay changes nothing of what is kept"


@settings(max_examples=100, deadline=None)
@given(ACTIONS)
def test_what_is_stored_of_a_job_is_stored_again_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, str, int]]
) -> None:
    drive = Driver(tmp_path_factory.getbasetemp())
    for action in actions:
        drive.act(*action)
    for tracker in drive.machine.trackers.select():
        stored = tracker.stored()
        assert JobTracker(tracker.job_id, OPTIONS, drive.now, stored).stored() == stored


def test_the_history_of_each_job_is_bounded_and_never_empty(tmp_path: Path) -> None:
    drive = Driver(tmp_path, HistoryLimits(stimuli=8, job_bytes=100_000, all_bytes=100_000, min_job_bytes=20_000))
    lengths = []
    for number in range(60):
        drive.steps(JOBS[number % 2], 5)
        history = drive.recorder.history(JOBS[number % 2])
        assert history is not None
        lengths.append(len(history[1]))
        assert drive.recorder.size <= 100_000
    assert (min(lengths), max(lengths)) == (1, 8)
    drive.tell(JobsForgotten(JOBS))
    assert drive.recorder.size == 0


def test_histories_of_jobs_that_are_silent_go_first(tmp_path: Path) -> None:
    drive = Driver(tmp_path, HistoryLimits(all_bytes=35_000, publications=3))
    drive.steps("j1", 5)
    drive.steps("j2", 5)
    drive.steps("j2", 50)
    assert drive.recorder.history("j1") is None
    assert drive.recorder.history("j2") is not None
    for _ in range(4):
        assert drive.recorder.size > 0
        drive.tell(PublishDue())
    assert drive.recorder.size == 0


def test_of_a_message_that_is_too_long_to_be_kept_a_failure_is_replayed_nevertheless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive = Driver(tmp_path, HistoryLimits(all_bytes=20_000, job_bytes=20_000), validate=False)
    drive.steps("j1", 2000)
    assert drive.recorder.size == 0

    def fail(_: object, step: object) -> None:
        raise OverflowError(f"{step} is too long")

    monkeypatch.setattr(ThroughputMeter, "add", fail)
    with pytest.raises(OverflowError):
        drive.steps("j1", 2000)
    recording = written(tmp_path)
    assert [len(timed.stimulus.batches[0].records) for timed in recording.stimuli] == [2000]
    assert reproduces(recording, replay_recording(recording))


def written(folder: Path) -> Recording:
    (file,) = (folder / "debug").iterdir()
    return read_recording(file)


def lose_samples(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "malletrain.monitor.machine.trackers.advance_steadily",
        lambda *given: replace(advance_steadily(*given), samples=7),
    )


def forget_sequences(patch: pytest.MonkeyPatch) -> None:
    states = ReporterSequences.states
    patch.setattr(
        ReporterSequences,
        "states",
        lambda self: {name: replace(one, sequence=min(13, one.sequence)) for name, one in states(self).items()},
    )


def negative_rates(patch: pytest.MonkeyPatch) -> None:
    points = ThroughputMeter.known_points.fget  # type: ignore[attr-defined]  # the property's own function
    patch.setattr(
        ThroughputMeter, "known_points", property(lambda self: tuple(replace(one, rate=-1.0) for one in points(self)))
    )


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (lose_samples, "job j2 has trained 7 samples, after 320"),
        (forget_sequences, "job j2 has its newest record from 'r1', number "),
        (negative_rates, "job j2 has a point that is none: "),
    ],
)
def test_a_defect_breaks_an_invariant_and_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], message: str
) -> None:
    drive = Driver(tmp_path)
    drive.steps("j1", 20)
    drive.steps("j2", 10)
    drive.tell(PublishDue())
    plant(monkeypatch)
    with pytest.raises(InvariantError, match=message) as caught:
        drive.steps("j2", 60)
    assert caught.value.__dict__["job_id"] == "j2"
    recording = written(tmp_path)
    assert recording.state.trackers.job_ids == set()
    assert reproduces(recording, replay_recording(recording))
    monkeypatch.undo()
    assert replay_recording(recording).failure is None


def test_a_failure_while_publishing_is_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drive = Driver(tmp_path, validate=False)
    drive.steps("j1", 20)
    drive.steps("j2", 20)
    drive.tell(PublishDue())
    drive.steps("j2", 20)

    def fail(_: object) -> None:
        raise OverflowError("no curve")

    monkeypatch.setattr(JobTracker, "scaling", fail)
    with pytest.raises(OverflowError):
        drive.tell(PublishDue())
    recording = written(tmp_path)
    assert recording.failure.job_id == "j2"
    assert [type(timed.stimulus) for timed in recording.stimuli[-2:]] == [BatchesReported, PublishDue]
    monkeypatch.undo()
    assert replay_recording(recording).failure is None


def test_counts_of_hostile_reports_stay_within_the_columns_of_the_store(tmp_path: Path) -> None:
    drive = Driver(tmp_path)
    store = MonitorStore(open_database(Settings(state_dir=tmp_path).database("monitor")))
    positions = [MAX_POSITION, 1] * 20
    rolling = [ProgressRecord(float(number), 1, position, 1) for number, position in enumerate(positions)]
    batches = [ReportedBatch("j1", "r1", 1, RecordColumns.of(rolling), 1)]
    # Without positions, and by one reporter after the other that has dropped all there can be.
    adding = RecordColumns.of([ProgressRecord(1.0, MAX_SAMPLES, -1, 1)])
    batches += [ReportedBatch("j2", f"r{n}", 1, adding, 1, dropped_records=MAX_POSITION) for n in range(20)]
    drive.report(*batches)
    found = [drive.machine.trackers.find(job_id) for job_id in JOBS]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].progress.samples_lost == found[1].dropped_records == MAX_COUNT
    store.write([tracker.stored() for tracker in drive.machine.trackers.select()])
    assert {job.job_id for job in store.load()} == set(JOBS)
    store.close()
