"""Profiles of all jobs, as jobs are declared, measured and removed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.model.goodput import GradientNoise
from malletrain.profiler.machine.curve_estimator import CurveEstimator, JobDeclaration, JobMeasurements
from malletrain.profiler.machine.points import CurvePoint, CurveSource
from malletrain.profiler.settings import ProfilerSettings

OPTIONS = ProfilerSettings().options()


def measured(*rates: tuple[int, float], up: float | None = None) -> JobMeasurements:
    return JobMeasurements(tuple(CurvePoint(nodes, rate, 100) for nodes, rate in rates), scale_up_seconds=up)


def test_an_unknown_job_starts_as_the_median_job() -> None:
    curves = CurveEstimator.of(OPTIONS)
    for job_id, rate in (("slow", 10.0), ("middle", 1000.0), ("fast", 7000.0)):
        curves.put_job(JobDeclaration(job_id=job_id, min_nodes=1, max_nodes=4))
        curves.put_measurements(job_id, measured((1, rate)))
    curves.put_job(JobDeclaration(job_id="new", min_nodes=1, max_nodes=4))
    curves.refresh()
    profile = curves.profile("new")
    assert profile is not None
    assert profile.points[0].rate == pytest.approx(1000)
    assert {point.source for point in profile.points} == {CurveSource.PRIOR}
    assert (profile.scale_up.seconds, profile.scale_down.seconds) == (2.0, 1.0)


def test_unknown_jobs_follow_when_the_known_ones_change() -> None:
    curves = CurveEstimator.of(OPTIONS)
    curves.put_job(JobDeclaration(job_id="a", min_nodes=1, max_nodes=4))
    curves.put_job(JobDeclaration(job_id="b", min_nodes=1, max_nodes=4))
    assert [profile.job_id for profile in curves.refresh()] == ["a", "b"]
    curves.put_measurements("a", measured((1, 500.0)))
    assert [profile.job_id for profile in curves.refresh()] == ["a", "b"]
    profile = curves.profile("b")
    assert profile is not None
    assert profile.points[0].rate == pytest.approx(500)


def test_noise_changes_nothing_but_slow_drift_does() -> None:
    curves = CurveEstimator.of(OPTIONS)
    curves.put_job(JobDeclaration(job_id="a", min_nodes=1, max_nodes=4))
    curves.put_measurements("a", measured((2, 1000.0), up=5.0))
    assert len(curves.refresh()) == 1
    for rate in (1015.0, 985.0, 1010.0):
        curves.put_measurements("a", measured((2, rate), up=5.05))
        assert curves.refresh() == []
    changes = 0
    for step in range(1, 41):
        curves.put_measurements("a", measured((2, 1000.0 + step * 5), up=5.0))
        changes += len(curves.refresh())
    profile = curves.profile("a")
    assert profile is not None
    assert 5 <= changes <= 12
    assert next(point.rate for point in profile.points if point.nodes == 2) == pytest.approx(1200, rel=0.02)


def test_a_new_source_is_a_change_even_where_the_figure_is_the_same() -> None:
    curves = CurveEstimator.of(OPTIONS)
    curves.put_job(
        JobDeclaration(
            job_id="a",
            min_nodes=1,
            max_nodes=2,
            curve=(CurvePoint(1, 100.0), CurvePoint(2, 200.0)),
            scale_up_seconds=5.0,
        )
    )
    curves.refresh()
    curves.put_measurements("a", measured((2, 200.0)))
    assert len(curves.refresh()) == 1
    curves.put_measurements("a", measured((2, 200.0), up=5.0))
    assert len(curves.refresh()) == 1
    assert curves.refresh() == []


def test_measurements_may_come_before_the_job() -> None:
    curves = CurveEstimator.of(OPTIONS)
    curves.put_measurements("a", measured((2, 200.0)))
    assert curves.refresh() == []
    curves.put_job(JobDeclaration(job_id="a", min_nodes=1, max_nodes=2))
    (profile,) = curves.refresh()
    assert profile.points[-1].source == CurveSource.MEASURED


def test_ended_jobs_are_forgotten() -> None:
    curves = CurveEstimator.of(OPTIONS)
    for job_id in ("a", "b", "c"):
        curves.put_job(JobDeclaration(job_id=job_id, min_nodes=1, max_nodes=2))
    curves.refresh()
    curves.remove_job("a")
    curves.remove_job("never known")
    curves.keep_only(["b"])
    assert [profile.job_id for profile in curves.profiles()] == ["b"]
    assert curves.refresh() == []


def test_a_noise_scale_is_handed_on_when_it_has_moved() -> None:
    curves = CurveEstimator.of(OPTIONS)
    curves.put_job(JobDeclaration(job_id="a", min_nodes=1, max_nodes=4))
    curves.put_measurements("a", measured((2, 1000.0)))
    assert [profile.noise for profile in curves.refresh()] == [None]
    found = []
    for noise_scale, per_node in ((500.0, 32.0), (500.1, 32.0), (600.0, 32.0), (600.0, 0.0)):
        told = GradientNoise(noise_scale, per_node)
        curves.put_measurements("a", replace(measured((2, 1000.0)), noise=told))
        found += [profile.noise for profile in curves.refresh()]
    assert found == [GradientNoise(500.0, 32.0), GradientNoise(600.0, 32.0), GradientNoise(600.0, 0.0)]
