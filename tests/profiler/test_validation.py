"""Each invariant of Profiler's state, broken on purpose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.profiler.machine.curve_estimator import CurveEstimator, JobDeclaration, JobMeasurements
from malletrain.profiler.machine.donors import InterruptionHistory
from malletrain.profiler.machine.family_store import FamilyMember, FamilyStore
from malletrain.profiler.machine.profile_scheduler import ClusterView, JobView, ProfilingState, ScaleRequest
from malletrain.profiler.machine.recording import validate_curves, validate_runs
from malletrain.profiler.machine.runs import ProfileRun, ProfileRunState
from malletrain.profiler.settings import ProfilerSettings
from malletrain.runtime.errors import InvariantError
from tests.profiler.points import measured_points

VIEW = ClusterView(
    100.0,
    12,
    (
        JobView("a", (1, 2, 4, 8), 8, steady=True),
        JobView("b", (1, 2, 4), 4, steady=True),
        JobView("c", (2, 3), 0, steady=True),
    ),
)
MEASURING = ProfileRun(
    "a",
    ProfileRunState.MEASURING,
    "measures at 4",
    began=50.0,
    top=8,
    nodes=4,
    visited=(8,),
    node_seconds=9.0,
    seen=100.0,
)
CLIMBING = ProfileRun(
    "a",
    ProfileRunState.CLIMBING,
    "climbs to 8",
    began=90.0,
    top=8,
    nodes=8,
    donor="b",
    donor_nodes=2,
    donors=("b",),
    seen=100.0,
)
WAITING = ProfileRun("b", ProfileRunState.QUEUED, "waits for its turn")
COUNTED = InterruptionHistory({"b": 1}, {"b": 1})


def measuring(**changes: object) -> ProfilingState:
    run = replace(MEASURING, **changes)  # type: ignore[arg-type]
    return ProfilingState({"a": run, "b": WAITING}, COUNTED, {"a": ScaleRequest(run.nodes)}, 200.0)


def climbing(**changes: object) -> ProfilingState:
    run = replace(CLIMBING, **changes)  # type: ignore[arg-type]
    requests = {"a": ScaleRequest(8, grow=True), "b": ScaleRequest(2), "c": ScaleRequest()}
    return ProfilingState({"a": run}, COUNTED, requests, 200.0)


@pytest.mark.parametrize("state", [ProfilingState(), measuring(), climbing()])
def test_states_in_order(state: ProfilingState) -> None:
    validate_runs(state, VIEW)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (replace(measuring(), runs={"a": MEASURING, "b": replace(CLIMBING, job_id="b", donor="")}), "while others are"),
        (replace(measuring(), runs={"a": MEASURING, "z": replace(WAITING, job_id="z")}), "job z: has a run but"),
        (replace(measuring(), runs={"a": MEASURING, "c": WAITING}), "job c: has the run of job b"),
        (replace(measuring(), runs={}), "although no run is active"),
        (replace(measuring(), requests={}), "without a request"),
        (replace(measuring(), requests_until=100.0), "expired at 100.0"),
        (replace(measuring(), requests={"a": ScaleRequest(4), "z": ScaleRequest()}), "job z: has a request but"),
        (replace(measuring(), requests={"a": ScaleRequest(3)}), "3 nodes, which is not a permitted scale"),
        (replace(measuring(), requests={"a": ScaleRequest(2)}), "does not follow from the run of a"),
        (replace(measuring(), requests={"a": ScaleRequest(4), "b": ScaleRequest()}), "does not follow"),
        (measuring(nodes=3), "permitted are"),
        (measuring(top=2), "4 of at most 2 nodes"),
        (measuring(visited=(8, 4)), "not below what it has been measured at"),
        (measuring(visited=(8, 8)), "another order than downwards"),
        (measuring(visited=(7,)), "measured at scales that are not permitted"),
        (measuring(began=None), "has not begun"),
        (measuring(donor="b"), "although it is MEASURING"),
        (measuring(stalled_node_seconds=10.0), "stalled for 10.0 of 9.0"),
        (measuring(growths=-1), "negative costs"),
        (climbing(nodes=4), "climbs to 4 nodes instead of 8"),
        (climbing(donor="z", donors=("z",)), "takes nodes from z"),
        (climbing(donor="a", donors=("a",)), "takes nodes from a"),
        (climbing(donor_nodes=3), "job b: is to keep 3 nodes"),
        (climbing(donors=()), "not among its donors"),
        (replace(climbing(), requests={"a": ScaleRequest(), "b": ScaleRequest(1)}), "job b: has a request that"),
        (replace(climbing(), runs={"a": replace(CLIMBING, state=ProfileRunState.DONE)}), "DONE but has a donor"),
        (replace(measuring(), interruptions=InterruptionHistory({"z": 1}, {"z": 1})), "job z: has 1 interruptions"),
        (replace(measuring(), interruptions=InterruptionHistory({"a": 1, "b": 1}, {"a": 1, "b": 1})), "same number"),
        (replace(measuring(), interruptions=InterruptionHistory({}, {"b": 1})), "numbered and counted"),
    ],
)
def test_broken_runs_are_named(state: ProfilingState, message: str) -> None:
    with pytest.raises(InvariantError, match=message) as caught:
        validate_runs(state, VIEW)
    assert "; request " in str(caught.value) or "interruptions" in str(caught.value), "the story of the job"


def curves() -> CurveEstimator:
    found = CurveEstimator(ProfilerSettings().options(), FamilyStore(8, {"f": (FamilyMember("x", (), ()),)}))
    found.put_job(JobDeclaration(job_id="a", min_nodes=1, max_nodes=8, family="f"))
    found.put_measurements("a", JobMeasurements(tuple(measured_points((1, 10.0), (8, 60.0)))))
    found.refresh(1000.0)
    return found


def test_curves_in_order() -> None:
    validate_curves(curves())


def test_a_job_in_its_family_twice_or_after_it_left() -> None:
    found = curves()
    found.families.families["f"] *= 2
    with pytest.raises(InvariantError, match="job x: is more than once in family f"):
        validate_curves(found)
    found = curves()
    found.families.left.add("a")
    with pytest.raises(InvariantError, match="job a: is in family f although it has left it"):
        validate_curves(found)


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        (JobDeclaration(job_id="a", min_nodes=1, max_nodes=4), "does not end at its largest scale, 4"),
        (JobDeclaration(job_id="a", min_nodes=0, max_nodes=8), "begins above its smallest scale, 0"),
    ],
)
def test_a_curve_that_does_not_fit_the_job(declaration: JobDeclaration, message: str) -> None:
    found = curves()
    found.put_job(declaration)
    with pytest.raises(InvariantError, match=message):
        validate_curves(found)
