"""Members of fleets: their curves count GPUs, and profiles of other jobs leave them alone."""

from __future__ import annotations

import pytest

from malletrain.profiler.machine.curve_estimator import CurveEstimator, JobDeclaration, JobMeasurements
from malletrain.profiler.machine.job_views import JobViews, without_fleets
from malletrain.profiler.machine.points import CurvePoint
from malletrain.profiler.settings import ProfilerSettings
from tests.profiler.jobs import reported_job

NODES = {"n1": "", "n2": "", "n3": ""}


def test_members_are_neither_profiled_nor_donors_and_their_nodes_are_not_free() -> None:
    jobs = {
        one.job_id: one
        for one in (
            reported_job("j1", "n1"),
            reported_job("j2", "n2#0", fleet_id="f1"),
            reported_job("j3", "n2#1", fleet_id="f1"),
        )
    }
    assert [view.job_id for view in JobViews().of(jobs, 0.0, NODES)] == ["j1"]
    assert without_fleets(NODES, jobs) == {"n1": "", "n3": ""}
    assert without_fleets(NODES, {"j1": jobs["j1"]}) is NODES


def test_each_fleet_has_a_prior_of_its_own() -> None:
    curves = CurveEstimator.of(ProfilerSettings().options())
    known = {"j1": ("", 5000.0), "j2": ("f2", 40.0), "j3": ("f2", 60.0), "j4": ("f2", 50.0)}
    for job_id, (fleet_id, rate) in known.items():
        curves.put_job(JobDeclaration(job_id=job_id, min_nodes=1, max_nodes=4, fleet_id=fleet_id))
        curves.put_measurements(job_id, JobMeasurements((CurvePoint(1, rate, 100),)))
    for job_id, fleet_id in (("j5", ""), ("j6", "f2"), ("j7", "f7")):
        curves.put_job(JobDeclaration(job_id=job_id, min_nodes=1, max_nodes=4, fleet_id=fleet_id))
    curves.refresh()
    rates = {job_id: profile.points[0].rate for job_id in ("j5", "j6", "j7") if (profile := curves.profile(job_id))}
    assert rates == pytest.approx({"j5": 5000.0, "j6": 50.0, "j7": 1.0})
    # Another member that gets known changes those of its fleet only.
    curves.put_measurements("j6", JobMeasurements((CurvePoint(1, 100.0, 100),)))
    assert [profile.job_id for profile in curves.refresh()] == ["j6"]
    curves.put_job(JobDeclaration(job_id="j8", min_nodes=1, max_nodes=4, fleet_id="f2"))
    curves.refresh()
    profile = curves.profile("j8")
    assert profile is not None
    assert profile.points[0].rate == pytest.approx(55.0)
