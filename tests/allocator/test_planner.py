from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from malletrain.allocator.horizon import Forward
from malletrain.allocator.picture import Picture
from malletrain.allocator.planner import Options, Signature, build_problem, describe_change
from malletrain.allocator.problem import CostModel, ObjectiveMetric
from malletrain.allocator.validation import validate
from malletrain.v1 import job_manager_pb2, profiler_pb2, resources_pb2, scavenger_pb2

OPTIONS = Options(Forward(120.0), CostModel.STALL, ObjectiveMetric.THROUGHPUT)


def nodes(*names: str, snapshot: bool = True) -> scavenger_pb2.WatchNodesResponse:
    joined = [resources_pb2.Node(name=name, expected_stay_seconds=9.0) for name in names]
    return scavenger_pb2.WatchNodesResponse(snapshot=snapshot, joined=joined)


def job(name: str, state: resources_pb2.JobState.ValueType = resources_pb2.JOB_STATE_RUNNING, **more: object) -> object:
    spec = resources_pb2.JobSpec(name=name, min_nodes=1, max_nodes=4)
    return resources_pb2.Job(id=name, spec=spec, state=state, **{"admitted": True, **more})


def jobs(*entries: object, snapshot: bool = True) -> job_manager_pb2.WatchJobsResponse:
    return job_manager_pb2.WatchJobsResponse(snapshot=snapshot, jobs=entries)


def profiles(*names: str) -> profiler_pb2.WatchProfilesResponse:
    points = [profiler_pb2.ProfilePoint(nodes=1, rate=10), profiler_pb2.ProfilePoint(nodes=4, rate=30)]
    return profiler_pb2.WatchProfilesResponse(
        profiles=[profiler_pb2.Profile(job_id=name, points=points, scale_up_seconds=2) for name in names]
    )


def picture() -> Picture:
    found = Picture()
    found.see_nodes(nodes("n1", "n2", "n3"))
    found.see_jobs(jobs(job("a", commanded_nodes=["n1"]), job("b"), job("c", admitted=False)))
    found.see_profiles(profiles("a", "b", "c"))
    return found


def test_a_problem_holds_the_admitted_jobs_and_the_idle_nodes() -> None:
    problem = build_problem(picture().situation(0.0), OPTIONS)
    validate(problem)
    assert problem.nodes == ("n1", "n2", "n3")
    assert [(entry.id, entry.current_nodes) for entry in problem.jobs] == [("a", ("n1",)), ("b", ())]
    assert problem.jobs[0].scale_up_seconds == 2
    assert problem.expected_stay_seconds["n2"] == 9.0


def test_half_a_picture_is_no_picture() -> None:
    found = Picture()
    assert not found.complete
    found.see_nodes(nodes("n1"))
    assert not found.complete
    found.see_jobs(jobs())
    assert found.complete


def test_a_node_that_left_is_not_current() -> None:
    found = picture()
    found.see_nodes(scavenger_pb2.WatchNodesResponse(left=["n1"]))
    problem = build_problem(found.situation(0.0), OPTIONS)
    assert (problem.nodes, problem.jobs[0].current_nodes) == (("n2", "n3"), ())


def test_a_stopping_job_and_its_nodes_stay_out() -> None:
    found = picture()
    stopping = job("a", resources_pb2.JOB_STATE_STOPPING, commanded_nodes=["n1"], wanted_nodes=["n2"])
    found.see_jobs(jobs(stopping, snapshot=False))
    problem = build_problem(found.situation(0.0), OPTIONS)
    assert problem.nodes == ("n3",)
    assert [entry.id for entry in problem.jobs] == ["b"]


def test_a_job_that_backs_off_waits_for_its_time() -> None:
    found = picture()
    later = Timestamp(seconds=100)
    found.see_jobs(jobs(job("a", resources_pb2.JOB_STATE_WAITING, not_before=later), snapshot=False))
    assert [entry.id for entry in found.situation(99.0).jobs] == ["b"]
    assert found.next_eligible(99.0) == 100.0
    assert [entry.id for entry in found.situation(100.0).jobs] == ["a", "b"]
    assert found.next_eligible(100.0) is None


def test_ended_jobs_are_forgotten_and_unknown_curves_are_waited_for() -> None:
    found = picture()
    found.see_jobs(jobs(job("a", resources_pb2.JOB_STATE_COMPLETED), job("d"), snapshot=False))
    assert [entry.id for entry in found.situation(0.0).planned_jobs] == ["b"]


def test_what_makes_a_plan_due() -> None:
    found = picture()
    before = Signature.of(found.situation(0.0))
    assert describe_change(Signature(), before) == "nodes joined: n1, n2, n3; jobs arrived: a, b"
    found.see_jobs(jobs(job("a", commanded_nodes=["n1", "n2"]), snapshot=False))
    assert describe_change(before, Signature.of(found.situation(0.0))) == "", "our own rescale is no event"
    found.see_nodes(scavenger_pb2.WatchNodesResponse(left=["n2"]))
    found.see_jobs(jobs(job("b", resources_pb2.JOB_STATE_FAILED), snapshot=False))
    assert describe_change(before, Signature.of(found.situation(0.0))) == "nodes left: n2; jobs ended: b"
