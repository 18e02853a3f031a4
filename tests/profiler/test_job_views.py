from __future__ import annotations

from dataclasses import replace

from malletrain.profiler.machine.job_views import JobViews, view_of
from tests.profiler.jobs import reported_job

POOLS = {"n1": "a", "n2": "a", "n3": "b"}


def test_views_are_those_of_the_present_jobs_and_pools() -> None:
    views = JobViews()
    jobs = {"b": reported_job("b", "n3"), "a": reported_job("a", "n1", "n2"), "c": reported_job("c", admitted=False)}
    first = views.of(jobs, 0.0, POOLS)
    assert first == tuple(view_of(jobs[name], 0.0, POOLS) for name in ("a", "b"))
    assert all(again is before for again, before in zip(views.of(jobs, 5.0, POOLS), first, strict=True))
    jobs["a"] = reported_job("a", "n1")
    assert [view.nodes for view in views.of(jobs, 5.0, POOLS)] == [1, 1]
    del jobs["b"]
    moved = {"n1": "z"}
    assert views.of(jobs, 5.0, moved) == (view_of(jobs["a"], 5.0, moved),)


def test_the_end_of_a_back_off_is_noticed_without_a_message() -> None:
    views, waiting = JobViews(), replace(reported_job("a"), not_before=10.0)
    assert [view.available for view in views.of({"a": waiting}, 9.0, POOLS)] == [False]
    assert [view.available for view in views.of({"a": waiting}, 11.0, POOLS)] == [True]
