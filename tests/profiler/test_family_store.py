"""Jobs of a family share points and rescale costs until one of them contradicts the others."""

from __future__ import annotations

import pytest

from malletrain.model.scaling import RescaleStall
from malletrain.profiler.machine.curve_estimator import CurveEstimator, JobDeclaration, JobMeasurements
from malletrain.profiler.machine.family_store import (
    FamilyMember,
    FamilyStore,
    contradicts,
    filled_from_family,
    shared_points,
)
from malletrain.profiler.machine.points import CurveSource
from malletrain.profiler.settings import ProfilerSettings
from tests.profiler.points import measured_points

MEMBERS = (
    FamilyMember("a", tuple(measured_points((1, 100.0), (8, 700.0)))),
    FamilyMember("b", tuple(measured_points((1, 104.0), (4, 390.0)))),
)


def test_members_are_merged_by_scale() -> None:
    shared = {point.nodes: point for point in shared_points(MEMBERS)}
    assert shared[1].rate == pytest.approx(102.0, rel=0.01)
    assert sorted(shared) == [1, 4, 8]
    assert all(point.source is CurveSource.FAMILY and point.relative_error >= 0.03 for point in shared.values())


def test_others_are_the_members_but_the_job_and_none_for_one_that_left() -> None:
    store = FamilyStore(8, {"f": MEMBERS}, left={"c"})
    assert [member.job_id for member in store.others("a", "f")] == ["b"]
    assert store.others("c", "f") == ()
    assert store.others("a", "") == ()


def test_only_the_newest_members_are_kept() -> None:
    store = FamilyStore(2, {"f": MEMBERS})
    assert store.update("c", "f", measured_points((1, 101.0)), ())
    assert [member.job_id for member in store.families["f"]] == ["b", "c"]


def test_a_job_that_scales_differently_contradicts_its_family() -> None:
    family = shared_points(MEMBERS)
    assert not contradicts(measured_points((1, 108.0), (8, 690.0)), family)
    assert contradicts(measured_points((8, 400.0)), family)
    assert contradicts(measured_points((2, 120.0)), family), "also between the family's scales"
    assert not contradicts(measured_points((8, 400.0), error=0.5), family), "an uncertain point is no evidence"
    assert not contradicts(measured_points((64, 1.0)), family), "outside the family's scales"


def test_own_points_come_first() -> None:
    found = filled_from_family(measured_points((8, 650.0)), shared_points(MEMBERS))
    assert [(point.nodes, point.source) for point in found] == [
        (1, CurveSource.FAMILY),
        (4, CurveSource.FAMILY),
        (8, CurveSource.MEASURED),
    ]


def test_a_job_has_the_curve_of_its_family_until_it_contradicts() -> None:
    curves = CurveEstimator.of(ProfilerSettings().options())
    curves.put_job(JobDeclaration(job_id="a", min_nodes=1, max_nodes=8, family="f"))
    points = tuple(measured_points((1, 100.0), (4, 380.0), (8, 700.0)))
    stalls = (RescaleStall(1, 8, 7.0), RescaleStall(8, 4, 3.0))
    curves.put_measurements("a", JobMeasurements(points, rescales=stalls))
    curves.remove_job("a")
    curves.put_job(JobDeclaration(job_id="b", min_nodes=1, max_nodes=8, family="f"))
    curves.put_job(JobDeclaration(job_id="c", min_nodes=1, max_nodes=8))
    curves.refresh(1000.0)
    relative, stranger = curves.profile("b"), curves.profile("c")
    assert relative is not None
    assert stranger is not None
    assert {point.nodes: point.source for point in relative.points}[8] is CurveSource.FAMILY
    assert (relative.scale_up.seconds, relative.scale_up.source) == (7.0, CurveSource.FAMILY)
    assert relative.scale_down.seconds == 3.0
    assert stranger.points[0].source is CurveSource.PRIOR
    curves.put_measurements("b", JobMeasurements(tuple(measured_points((4, 200.0), at=2000.0))))
    curves.refresh(2000.0)
    left = curves.profile("b")
    assert left is not None
    assert left.family == ""
    assert all(point.source is not CurveSource.FAMILY for point in left.points)
