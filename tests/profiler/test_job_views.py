from __future__ import annotations

from malletrain.profiler.job_views import JobViews
from malletrain.profiler.messages import view_of
from malletrain.v1 import resources_pb2

POOLS = {"n1": "a", "n2": "a", "n3": "b"}


def job(job_id: str, *nodes: str, **fields: object) -> resources_pb2.Job:
    spec = resources_pb2.JobSpec(min_nodes=1, max_nodes=4)
    return resources_pb2.Job(id=job_id, spec=spec, admitted=True, commanded_nodes=nodes, **fields)  # type: ignore[arg-type]


def test_views_are_those_of_the_present_jobs_and_pools() -> None:
    views = JobViews()
    jobs = {"b": job("b", "n3"), "a": job("a", "n1", "n2"), "c": resources_pb2.Job(id="c")}
    first = views.of(jobs, 0.0, POOLS)
    assert first == tuple(view_of(jobs[name], 0.0, POOLS) for name in ("a", "b"))
    assert all(again is before for again, before in zip(views.of(jobs, 5.0, POOLS), first, strict=True))
    jobs["a"] = job("a", "n1")
    assert [view.nodes for view in views.of(jobs, 5.0, POOLS)] == [1, 1]
    del jobs["b"]
    moved = {"n1": "z"}
    assert views.of(jobs, 5.0, moved) == (view_of(jobs["a"], 5.0, moved),)


def test_the_end_of_a_back_off_is_noticed_without_a_message() -> None:
    views, waiting = JobViews(), job("a")
    waiting.not_before.seconds = 10
    assert [view.available for view in views.of({"a": waiting}, 9.0, POOLS)] == [False]
    assert [view.available for view in views.of({"a": waiting}, 11.0, POOLS)] == [True]
