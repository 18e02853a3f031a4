"""What JobManager's state machine was given can be written down and replayed to the same failure."""

from __future__ import annotations

import contextlib
import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.job_manager.machine import state_machine
from malletrain.job_manager.machine.jobs import Job, JobProfileMode, JobSpec, LauncherBackend, NodeRelease
from malletrain.job_manager.machine.recording import RecordedJobManager, journal_story
from malletrain.job_manager.machine.state import JobEvent, ManagerPolicy, ManagerState
from malletrain.job_manager.machine.stimuli import (
    Cancelled,
    ClockStepped,
    Completion,
    IdleSetSeen,
    NodesChanged,
    NodesReleased,
    Outcome,
    PlanReceived,
    Progressed,
    Shutdown,
    Stimulus,
    Submitted,
    SupervisorEnded,
    SupervisorSeen,
    Ticked,
    TrainerDone,
    WeightSet,
)
from malletrain.job_manager.machine.validation import StateInvariantError
from malletrain.model.job_state import JobState
from malletrain.model.scaling import ScalingPoint
from malletrain.runtime.errors import NotFoundError, StalePlanError
from malletrain.runtime.kernel.documents import from_document, to_document
from malletrain.runtime.kernel.flight_recorder import MIN_STIMULI, FlightRecorder
from malletrain.runtime.kernel.recording import (
    Moment,
    RecordedFailure,
    Recording,
    StoryLine,
    TimedStimulus,
    recording_from_json,
    recording_to_json,
    replay_recording,
    reproduces,
)
from tests.job_manager.harness import MachineHarness, running
from tests.support.builders import job_spec

ONE = "j000001"
COUNTS = st.integers(0, 10**12)
SECONDS = st.floats(allow_nan=False)
NAMES = st.text(max_size=5)
NODES = st.frozensets(NAMES, max_size=4)
LISTS = st.lists(NAMES, max_size=4).map(tuple)
METRICS = st.dictionaries(NAMES, SECONDS, max_size=2)
SPECS = st.builds(
    JobSpec,
    name=NAMES,
    command=LISTS,
    working_directory=NAMES,
    min_nodes=COUNTS,
    max_nodes=COUNTS,
    environment=st.dictionaries(NAMES, NAMES, max_size=2),
    permitted_nodes=st.lists(COUNTS, max_size=2).map(tuple),
    scale_up_seconds=st.none() | SECONDS,
    curve=st.lists(st.builds(ScalingPoint, COUNTS, SECONDS), max_size=2).map(tuple),
    weight=SECONDS,
    profile=st.sampled_from(JobProfileMode),
    backend=st.sampled_from(LauncherBackend),
)
STIMULI: st.SearchStrategy[Stimulus] = st.one_of(
    st.builds(Submitted, st.lists(SPECS, max_size=2).map(tuple), NAMES),
    st.builds(Cancelled, NAMES),
    st.builds(WeightSet, NAMES, SECONDS, NAMES),
    st.builds(IdleSetSeen, NODES),
    st.builds(NodesChanged, NODES, NODES, SECONDS),
    st.builds(PlanReceived, COUNTS, st.lists(st.tuples(NAMES, LISTS), max_size=3).map(tuple)),
    st.builds(
        SupervisorSeen,
        NAMES,
        COUNTS,
        COUNTS,
        COUNTS,
        NODES,
        NODES,
        st.lists(st.tuples(NAMES, COUNTS), max_size=2).map(tuple),
    ),
    st.builds(NodesReleased, NAMES, COUNTS, LISTS),
    st.builds(
        SupervisorEnded,
        NAMES,
        COUNTS,
        st.sampled_from(Outcome),
        NAMES,
        st.none() | st.builds(Completion, st.none() | COUNTS, METRICS),
        LISTS,
    ),
    st.builds(Progressed, NAMES, COUNTS, st.booleans()),
    st.builds(TrainerDone, NAMES),
    st.just(Ticked()),
    st.builds(ClockStepped, SECONDS),
    st.just(Shutdown()),
)
JOBS = st.builds(
    Job,
    number=st.integers(1, 99),
    spec=SPECS,
    state=st.sampled_from(JobState),
    reason=NAMES,
    create_time=SECONDS,
    update_time=SECONDS,
    held=LISTS,
    releases=st.lists(st.builds(NodeRelease, NAMES, SECONDS, st.booleans()), max_size=2).map(tuple),
    not_before=st.none() | SECONDS,
    metrics=METRICS,
    owner=NAMES,
)
STATES = st.builds(
    ManagerState,
    st.lists(JOBS, max_size=2).map(lambda jobs: {job.id: job for job in jobs}),
    st.none() | NODES,
    COUNTS,
    COUNTS,
)
MOMENTS = st.builds(Moment, SECONDS, SECONDS)
TIMED = st.lists(st.builds(TimedStimulus[Stimulus], MOMENTS, STIMULI), max_size=5).map(tuple)
Timed = tuple[TimedStimulus[Stimulus], ...]
FAILURE = RecordedFailure("KeyError", "'x'", ONE, ("1.000 one", "2.000 two"))


def recording_of(state: ManagerState, stimuli: Timed) -> Recording:
    return Recording(RecordedJobManager(ManagerPolicy(max_parallel=3)), "0.1.0", True, state, stimuli, FAILURE)


def from_json(content: object) -> Recording:
    return recording_from_json(content, {"job_manager": RecordedJobManager}, "job_manager")


@given(STATES, TIMED)
def test_recordings_come_back_from_json_as_they_were(state: ManagerState, stimuli: Timed) -> None:
    recording = recording_of(state, stimuli)
    found = from_json(json.loads(json.dumps(recording_to_json(recording))))
    assert found.machine.policy == recording.machine.policy
    assert replace(found, machine=recording.machine) == recording


@given(STATES)
def test_states_come_back_from_json_as_they_were(state: ManagerState) -> None:
    assert from_document(ManagerState, json.loads(json.dumps(to_document(state)))) == state


@given(STATES, TIMED)
def test_recordings_of_versions_without_owners_and_services_can_be_read(state: ManagerState, stimuli: Timed) -> None:
    recording = recording_of(state, stimuli)
    content = json.loads(json.dumps(recording_to_json(recording)))
    for entry in (*content["state"]["jobs"].values(), *content["stimuli"]):
        entry.pop("owner", None)
        entry.pop("monotonic", None)
    del content["service"]
    found = from_json(content)
    assert {job.owner for job in found.state.jobs.values()} <= {""}
    submitted = [timed.stimulus for timed in found.stimuli if isinstance(timed.stimulus, Submitted)]
    assert {stimulus.owner for stimulus in submitted} <= {""}
    assert found.state.jobs.keys() == state.jobs.keys()


class Recorded:
    """A recorder, the state it has led to, and a journal."""

    def __init__(self, folder: Path, validate: bool = True) -> None:
        self.policy = ManagerPolicy()
        self.recorder = FlightRecorder(folder, RecordedJobManager(self.policy), validate, self.journal)
        self.state = ManagerState()
        self.now = 1000.0
        self.events: list[JobEvent] = []

    def journal(self, job_id: str) -> tuple[StoryLine, ...]:
        return journal_story(event for event in self.events if event.job_id == job_id)

    def apply(self, stimulus: Stimulus) -> None:
        self.now += 0.25
        result = self.recorder.advance(self.state, stimulus, Moment(self.now))
        self.state = result.state
        self.events += result.events

    def run_job(self) -> None:
        """A job trains on a and b."""
        secret = job_spec(environment={"TOKEN": "hunter2"})
        self.apply(Submitted((replace(secret, command=("train", "--key", "hunter2")),), "ada"))
        self.apply(IdleSetSeen(frozenset("abc")))
        self.apply(PlanReceived(1, ((ONE, ("a", "b")),)))
        self.apply(SupervisorSeen(ONE, 1, 1, 1, frozenset("ab"), frozenset("ab")))


def forget_releases(*_: object) -> tuple[NodeRelease, ...]:
    return ()


def fail(*_: object) -> None:
    raise ValueError("this stimulus can't be handled")


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine forgets to release nodes that leave."""
    monkeypatch.setattr(state_machine, "_with_lost", forget_releases)


def written(folder: Path) -> Recording:
    (path,) = folder.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    return from_json(json.loads(path.read_text()))


@pytest.mark.usefixtures("faulty")
def test_a_broken_invariant_is_written_down_and_comes_again(tmp_path: Path) -> None:
    folder = tmp_path / "debug"
    recorded = Recorded(folder)
    recorded.run_job()
    with pytest.raises(StateInvariantError, match="job j000001: b left, and are not being released") as caught:
        recorded.apply(NodesChanged(frozenset(), frozenset("b"), recorded.now))
    (story,) = caught.value.__notes__
    assert "STARTING -> RUNNING on a b: CONFIRMED: trains on 2 nodes" in story
    assert "<- SupervisorSeen" in story
    recording = written(folder)
    assert len(recording.stimuli) == 5
    first = recording.stimuli[0].stimulus
    assert isinstance(first, Submitted)
    assert (first.owner, first.specs[0].command) == ("ada", ("<redacted>",))
    assert recording.failure.message == str(caught.value)
    replayed = replay_recording(recording)
    assert replayed.failure == recording.failure
    assert reproduces(recording, replayed)


@pytest.mark.usefixtures("faulty")
def test_without_checks_the_replay_finds_the_first_broken_invariant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(tmp_path / "debug", validate=False)
    recorded.run_job()
    recorded.apply(NodesChanged(frozenset(), frozenset("b"), recorded.now))
    monkeypatch.setattr(state_machine, "_shut_down", fail)
    with pytest.raises(ValueError, match="can't be handled"):
        recorded.apply(Shutdown())
    recording = written(tmp_path / "debug")
    replayed = replay_recording(recording)
    assert replayed.first_violation.startswith("stimulus 5: job j000001: b left")
    assert reproduces(recording, replayed)


def test_a_defect_that_is_mended_does_not_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded(tmp_path / "debug")
    recorded.run_job()
    with monkeypatch.context() as patch:
        patch.setattr(state_machine, "_with_lost", forget_releases)
        with pytest.raises(StateInvariantError):
            recorded.apply(NodesChanged(frozenset(), frozenset("b"), recorded.now))
    recording = written(tmp_path / "debug")
    replayed = replay_recording(recording)
    assert (replayed.failure, replayed.first_violation) == (None, "")
    assert not reproduces(recording, replayed)


@pytest.mark.usefixtures("faulty")
def test_secrets_are_not_written(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path / "debug")
    recorded.run_job()
    recorded.apply(SupervisorEnded(ONE, 1, Outcome.FAILED, "exit status 1", None, ("hunter2",)))
    recorded.apply(Ticked())
    recorded.now += 10
    recorded.apply(PlanReceived(2, ((ONE, ("a", "b")),)))
    recorded.apply(PlanReceived(3, ((ONE, ("a", "b")),)))
    with pytest.raises(StateInvariantError):
        recorded.apply(NodesChanged(frozenset(), frozenset("b"), recorded.now))
    (path,) = (tmp_path / "debug").iterdir()
    assert "hunter2" not in path.read_text()
    assert "TOKEN" in path.read_text()
    assert reproduces(written(tmp_path / "debug"), replay_recording(written(tmp_path / "debug")))


@given(st.lists(STIMULI, max_size=8))
def test_the_machine_does_not_depend_on_what_is_redacted(stimuli: list[Stimulus]) -> None:
    plain, redacted, machine = MachineHarness(), MachineHarness(), RecordedJobManager(ManagerPolicy())
    for stimulus in (Submitted((job_spec(environment={"A": "1"}),)), *stimuli):
        for harness, applied in ((plain, stimulus), (redacted, machine.redact_stimulus(stimulus))):
            with contextlib.suppress(StalePlanError, NotFoundError):
                harness(applied)
    assert [replace(event, reason="") for event in plain.events] == [
        replace(event, reason="") for event in redacted.events
    ]


def test_the_last_stimuli_are_kept_and_their_snapshot_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(tmp_path / "debug")
    recorded.run_job()
    for samples in range(2 * MIN_STIMULI):
        recorded.apply(Progressed(ONE, samples, stalled=False))
        recorded.apply(Ticked())
    monkeypatch.setattr(state_machine, "_with_lost", forget_releases)
    with pytest.raises(StateInvariantError):
        recorded.apply(NodesChanged(frozenset(), frozenset("b"), recorded.now))
    recording = written(tmp_path / "debug")
    assert MIN_STIMULI <= len(recording.stimuli) < 1.2 * MIN_STIMULI
    assert not any(isinstance(timed.stimulus, Ticked) for timed in recording.stimuli)
    assert recording.state.jobs[ONE].samples > 0
    assert reproduces(recording, replay_recording(recording))


def test_refusals_are_no_failures(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path / "debug")
    with pytest.raises(NotFoundError):
        recorded.apply(Cancelled(ONE))
    with pytest.raises(StalePlanError):
        recorded.apply(PlanReceived(1, ()))
    assert not (tmp_path / "debug").exists()


@pytest.mark.usefixtures("faulty")
def test_old_files_go(tmp_path: Path) -> None:
    for minutes in range(12):
        recorded = Recorded(tmp_path / "debug")
        recorded.now += 60.0 * minutes
        recorded.run_job()
        with pytest.raises(StateInvariantError):
            recorded.apply(NodesChanged(frozenset(), frozenset("b"), recorded.now))
    assert len(list(tmp_path.glob("debug/*"))) == 10


@pytest.mark.usefixtures("faulty")
def test_a_folder_that_can_not_be_written_hides_no_error(tmp_path: Path) -> None:
    (tmp_path / "debug").touch()
    recorded = Recorded(tmp_path / "debug")
    recorded.run_job()
    with pytest.raises(StateInvariantError):
        recorded.apply(NodesChanged(frozenset(), frozenset("b"), recorded.now))


def test_running_harness_is_validated() -> None:
    harness = running("a b")
    harness.state = replace(harness.state, idle=frozenset("a"))
    with pytest.raises(StateInvariantError, match="b left"):
        harness(Ticked())
