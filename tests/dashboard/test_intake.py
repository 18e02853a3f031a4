"""Messages become facts, and what not every viewer may see stays behind."""

from __future__ import annotations

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from malletrain.dashboard.figures.colours import LIGHT, THEMES
from malletrain.dashboard.figures.columns import curve_rows, fit_columns
from malletrain.dashboard.pages.plan_page import requirement_facts
from malletrain.dashboard.pages.selection import Selection
from malletrain.dashboard.pages.views import requirement_rows
from malletrain.observer import intake, job_intake
from malletrain.observer.facts import RowOfPlan
from malletrain.observer.job_facts import PointFact
from malletrain.v1 import allocator_pb2, job_manager_pb2, monitor_pb2, profiler_pb2, resources_pb2, scavenger_pb2


def test_a_node_says_what_is_known_of_it() -> None:
    message = resources_pb2.Node(name="n1", idle_since=Timestamp(seconds=100), gpus=4, gpu_type="a100", agent="x:1")
    found = intake.node_fact(message)
    assert (found.name, found.idle_since, found.idle_until, found.gpus, found.held) == (
        "n1",
        100.0,
        None,
        "4 a100",
        True,
    )
    message.idle_until.seconds = 0
    assert intake.node_fact(message).idle_until == 0.0


def test_a_job_is_taken_without_its_secrets() -> None:
    spec = resources_pb2.JobSpec(
        name="one", command=["hidden"], environment={"A": "hidden"}, working_directory="/hidden", family="hidden"
    )
    message = resources_pb2.Job(
        id="j1",
        spec=spec,
        owner="ada",
        state=resources_pb2.JOB_STATE_RUNNING,
        reason="hidden",
        reason_code=resources_pb2.JOB_REASON_PLAN_RESCALED,
        commanded_nodes=["n1", "n2"],
        confirmed_nodes=["n1"],
        wanted_nodes=["n1", "n2", "n3"],
    )
    found = job_intake.job_fact(message)
    assert (found.name, found.owner, found.state, found.reason) == ("one", "ada", "RUNNING", "plan rescaled")
    assert (found.wanted, found.commanded, found.confirmed) == (3, {"n1", "n2"}, {"n1"})
    assert (found.ended, found.not_before, found.final) == (None, None, False)
    assert "hidden" not in repr(found)


def test_workers_that_hold_up_the_others_are_told_in_words() -> None:
    assert job_intake.progress_fact(monitor_pb2.Progress(job_id="j1")).slow_workers == ""
    slow = [monitor_pb2.SlowWorker(rank=2, node="n3", share=0.5), monitor_pb2.SlowWorker(rank=1, node="n2", share=0.3)]
    found = job_intake.progress_fact(monitor_pb2.Progress(job_id="j1", slow_workers=slow))
    assert found.slow_workers == (
        "rank 2 on n3, 50% longer for its own part of a step; rank 1 on n2, 30% longer for its own part of a step"
    )


def test_values_of_later_versions_are_unknown_and_break_nothing() -> None:
    found = job_intake.job_fact(resources_pb2.Job(id="j1", state=99, reason_code=9999))  # type: ignore[arg-type]
    assert (found.state, found.reason) == ("UNKNOWN", "unknown")
    assert job_intake.reason_in_words(resources_pb2.JOB_REASON_UNSPECIFIED) == ""


def test_only_the_confirmation_of_a_release_is_a_release() -> None:
    row = job_manager_pb2.JobEvent(unix_seconds=5.0, job_id="j1", nodes=["n1"], release_seconds=0.5)
    assert intake.release_fact(row) is None
    row.reason_code = resources_pb2.JOB_REASON_NODE_RELEASED
    found = intake.release_fact(row)
    assert found is not None
    assert (found.time, found.job_id, found.seconds) == (5.0, "j1", 0.5)
    assert intake.held_fact(row).nodes == {"n1"}


def test_curves_and_stalls() -> None:
    point = profiler_pb2.ProfilePoint(
        nodes=2, rate=20.0, source=profiler_pb2.CURVE_SOURCE_MEASURED, relative_error=0.05, steps=7
    )
    curve = job_intake.curve_fact(profiler_pb2.Profile(job_id="j1", points=[point], scale_up_seconds=3.0))
    assert curve.points == (PointFact(2, 20.0, "measured", 0.05, 7),)
    assert curve.up_s == 3.0
    line = [resources_pb2.ScalingPoint(nodes=nodes, rate=10.0 * nodes) for nodes in (1, 2)]
    fitted = job_intake.curve_fact(profiler_pb2.Profile(job_id="j1", points=[point], fit="ring", fit_line=line))
    assert fit_columns(fitted) == {"nodes": [1, 2], "rate": [10.0, 20.0]}
    assert curve_rows(fitted)["source"] == ["measured", "fit", "fit"]
    assert curve_rows(fitted)["low"] == [pytest.approx(19.0), "", ""]
    record = monitor_pb2.ScalingRecord(job_id="j1")
    record.rescales.add(from_nodes=1, to_nodes=2, stall_seconds=0.5, unix_seconds=9.0)
    (stall,) = intake.stall_facts(record)
    assert (stall.from_nodes, stall.to_nodes, stall.seconds, stall.time) == (1, 2, 0.5, 9.0)


def test_a_plan_says_what_each_job_had_and_gets() -> None:
    plan = allocator_pb2.Plan(generation=3, applied=True)
    plan.problem.nodes.extend(["n1", "n2"])
    plan.problem.jobs.add(id="j1", min_nodes=1, max_nodes=2, current_nodes=["n1"])
    plan.allocation.assignments.add(job_id="j1", nodes=["n1", "n2"])
    found = intake.plan_fact(plan)
    assert (found.generation, found.nodes, found.rows) == (3, 2, (RowOfPlan("j1", 1, 2),))
    assert allocator_pb2.AllocationProblem.FromString(found.problem) == plan.problem


def test_reasons_of_left_out_nodes_are_one_short_line() -> None:
    status = scavenger_pb2.GetStatusResponse(source="slurm", stale=True)
    status.quarantined.add(name="n1", failures=3, reason="two\nlines " + 300 * "x")
    status.drained.add(name="n2", user="ada")
    found = intake.source_fact(status)
    assert (found.source, found.stale) == ("slurm", True)
    assert [(trouble.name, trouble.kind) for trouble in found.troubles] == [("n1", "quarantined"), ("n2", "drained")]
    assert "two lines" in found.troubles[0].text
    assert len(found.troubles[0].text) < 300
    assert found.troubles[1].text.endswith("by ada: no reason")


@pytest.mark.parametrize(
    ("reason", "more", "needs"),
    [
        ("MAXIMUM", None, "nothing: it has the largest scale that it was submitted for"),
        ("PINNED", None, "the end of its measuring, or a save that succeeds: its scale is pinned"),
        ("POOL_TOO_SMALL", {"nodes": 8}, "8 nodes in its pool: that is its next permitted scale"),
        ("OWNER_LIMIT", {"nodes": 3}, "a higher limit of ada"),
        (
            "OTHERS_GAIN_MORE",
            {"nodes": 1, "rate": 10.0, "needed_rate": 12.5},
            "12.5 samples/s on 1 node; its curve says 10",
        ),
        ("OTHERS_GAIN_MORE", {"nodes": 2, "rate": 10.0}, "more than any rate on 2 nodes"),
    ],
)
def test_what_a_job_would_have_needed_is_said(reason: str, more: dict[str, float] | None, needs: str) -> None:
    job = allocator_pb2.JobExplanation(
        job_id="j1",
        owner="ada",
        more_reason=allocator_pb2.ScaleReason.Value(f"SCALE_REASON_{reason}"),
        sentences=["has 1 node", "not 2: others gain more"],
    )
    if more is not None:
        job.more.CopyFrom(allocator_pb2.ScaleWorth(**more))  # type: ignore[arg-type]
    (found,) = requirement_facts(allocator_pb2.PlanExplanation(jobs=[job]))
    assert (found.needs, found.why) == (needs, ("has 1 node", "not 2: others gain more"))
    (row,) = requirement_rows([found], THEMES[LIGHT], Selection(job="j1"))
    assert (row.chosen, row.cells[2].text) == (True, "Has 1 node. Not 2: others gain more.")
