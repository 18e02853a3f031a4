"""When Profiler's machine publishes and stores, and the recording of what led to a defect."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from malletrain.cli.operate.debug import read_recording
from malletrain.model.job_state import JobState
from malletrain.profiler.machine.curve_estimator import CurveEstimator, JobMeasurements
from malletrain.profiler.machine.family_store import FamilyMember, FamilyStore
from malletrain.profiler.machine.machine import Effects, ProfilerMachine
from malletrain.profiler.machine.points import CurvePoint
from malletrain.profiler.machine.profile_scheduler import ProfilingState
from malletrain.profiler.machine.recording import RecordedProfiler
from malletrain.profiler.machine.runs import ProfileRunState
from malletrain.profiler.machine.stimuli import (
    Due,
    JobsReported,
    NodesReported,
    ProfileRequested,
    PublishProfiles,
    ReadRequested,
    ScalingReported,
    Started,
    Stimulus,
    StoreChanges,
    WarnOfMonitor,
)
from malletrain.profiler.settings import ProfilerSettings
from malletrain.runtime.errors import InvalidInputError, InvariantError, NotFoundError
from malletrain.runtime.kernel.documents import copy_state, from_document, to_document
from malletrain.runtime.kernel.flight_recorder import FlightRecorder
from malletrain.runtime.kernel.recording import Moment, replay_recording, reproduces
from tests.profiler.jobs import reported_job

SETTINGS = ProfilerSettings(publish_seconds=1.0, save_seconds=10.0, snapshot_seconds=3.0)
NODES = NodesReported((("n1", ""), ("n2", ""), ("n3", ""), ("n4", "")), snapshot=True)


class Driven:
    """A machine, and a clock that tests set."""

    def __init__(self, settings: ProfilerSettings = SETTINGS, families: FamilyStore | None = None) -> None:
        self.machine = ProfilerMachine(
            settings.options(), CurveEstimator(settings.options(), families or FamilyStore(8)), ProfilingState()
        )
        self.now = 0.0

    def apply(self, stimulus: Stimulus, now: float | None = None) -> Effects:
        self.now = self.now if now is None else now
        return self.machine.advance(stimulus, Moment(1000.0 + self.now, self.now))

    def run_until_due(self) -> Effects:
        return self.apply(Due(), self.machine.due_at)


def published(effects: Effects) -> list[str] | None:
    """Jobs whose profiles are published; None: nothing is."""
    found = [effect for effect in effects if isinstance(effect, PublishProfiles)]
    return [profile.job_id for profile in found[0].profiles] if found else None


def known(*job_ids: str) -> Driven:
    """One that has just published the profiles of these jobs, which it does 0 seconds after it has begun."""
    driven = Driven()
    driven.apply(Started())
    driven.apply(ScalingReported(()))
    driven.apply(JobsReported(tuple(map(reported_job, job_ids)), snapshot=True))
    driven.apply(Due(), 0.1)
    driven.now = driven.machine.published_at
    return driven


def test_nothing_is_published_before_job_manager_and_monitor_have_told_what_there_is() -> None:
    driven = Driven()
    driven.apply(Started(), 0.0)
    driven.apply(JobsReported((), snapshot=True), 0.5)
    assert driven.run_until_due() == ()
    assert driven.machine.due_at == 3.0
    effects = driven.run_until_due()
    assert effects == (WarnOfMonitor(),)
    assert published(driven.run_until_due()) == []
    assert driven.machine.give_monitor_up_at == inf


def test_monitor_that_answers_is_not_given_up() -> None:
    driven = Driven()
    driven.apply(Started(), 0.0)
    driven.apply(ScalingReported(()), 0.5)
    driven.run_until_due()
    assert driven.machine.due_at == inf


def test_a_new_job_is_published_at_once_after_the_rest_and_other_news_a_moment_later() -> None:
    driven = known("j1")
    begun = driven.now
    moved = ScalingReported((("j1", JobMeasurements((CurvePoint(1, 7.0, 100, 0.01, 1000.0),))),))
    driven.apply(moved, begun + 0.2)
    assert driven.machine.due_at == pytest.approx(begun + 1.1)
    driven.apply(JobsReported((reported_job("j2"),)), begun + 0.3)
    assert driven.machine.due_at == pytest.approx(begun + 1.0)
    assert published(driven.run_until_due()) == ["j1", "j2"]
    # After a rest only the moment is waited for, and nothing for a new job.
    driven.apply(NODES, driven.now + 1.5)
    assert driven.machine.due_at == pytest.approx(driven.now + 0.1)
    driven.apply(JobsReported((reported_job("j3"),)))
    assert driven.machine.due_at == driven.now


def test_a_reader_gets_what_was_reported_before() -> None:
    driven = known("j1")
    assert driven.apply(ReadRequested()) == ()
    driven.apply(JobsReported((reported_job("j2"),)), driven.now + 0.2)
    assert published(driven.apply(ReadRequested())) == ["j2"]


def test_points_are_stored_now_and_then_and_when_a_job_has_ended() -> None:
    driven = known("j1", "j2")
    driven.apply(NODES, driven.now + 2.0)
    assert StoreChanges(with_points=False) in driven.run_until_due()
    driven.apply(JobsReported((reported_job("j1", state=JobState.COMPLETED),)))
    assert StoreChanges(with_points=True) in driven.run_until_due()
    assert StoreChanges(with_points=False) in driven.apply(Due(), driven.now + 9.0)
    assert StoreChanges(with_points=True) in driven.apply(Due(), driven.now + 2.5)


def test_a_requested_run_begins_and_the_machine_looks_at_it_soon() -> None:
    driven = known("j1")
    driven.apply(NODES)
    assert driven.machine.due_at > driven.now
    effects = driven.apply(ProfileRequested("j1"))
    assert published(effects) == ["j1"]
    assert driven.machine.runs.runs["j1"].state is ProfileRunState.CLIMBING
    assert driven.machine.due_at == pytest.approx(driven.now + 1.1)


@pytest.mark.parametrize(
    ("job_id", "error"),
    [("j9", NotFoundError), ("member", InvalidInputError), ("fixed", InvalidInputError), ("gpu", InvalidInputError)],
)
def test_requests_that_make_no_sense_are_refused(job_id: str, error: type[Exception]) -> None:
    driven = known("j1")
    fixed = reported_job("fixed")
    fixed = replace(fixed, declaration=replace(fixed.declaration, permitted_nodes=(2,)))
    gpu = reported_job("gpu")
    gpu = replace(gpu, declaration=replace(gpu.declaration, needs_certain_nodes=True))
    driven.apply(JobsReported((reported_job("member", fleet_id="f1"), fixed, gpu)))
    before = to_document(driven.machine)
    with pytest.raises(error):
        driven.apply(ProfileRequested(job_id))
    assert to_document(driven.machine) == before


def test_a_copy_and_a_document_go_on_as_the_machine_does() -> None:
    driven = known("j1", "j2")
    driven.apply(NODES)
    driven.apply(ProfileRequested("j2"))
    twin = copy_state(driven.machine)
    read = from_document(ProfilerMachine, to_document(twin))
    now = Moment(2000.0, 1000.0)
    effects = driven.machine.advance(Due(), now)
    assert effects
    assert twin.advance(Due(), now) == effects
    assert read.advance(Due(), now) == effects
    assert to_document(twin) == to_document(read) == to_document(driven.machine)


def test_a_broken_invariant_is_written_and_replayed(tmp_path: Path) -> None:
    driven = Driven(families=FamilyStore(8, {"f": (FamilyMember("j0", ()), FamilyMember("j0", ()))}))
    recorder = FlightRecorder(tmp_path, RecordedProfiler(), validate=True)

    def apply(stimulus: Stimulus, now: float) -> None:
        recorder.advance(driven.machine, stimulus, Moment(1000.0 + now, now))

    apply(Started(), 0.0)
    apply(ScalingReported((("j1", JobMeasurements((CurvePoint(1, 7.0, 100, 0.01, 1000.0),))),)), 0.1)
    apply(JobsReported((reported_job("j1", "n1"),), snapshot=True), 0.2)
    apply(NODES, 0.3)
    with pytest.raises(InvariantError, match="job j0: is more than once in family f"):
        apply(Due(), 1.0)
    recording = read_recording(next(tmp_path.glob("profiler-stimuli-*.json")))
    assert len(recording.stimuli) == 5
    assert reproduces(recording, replay_recording(recording))
