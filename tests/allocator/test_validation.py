from __future__ import annotations

import math
from typing import Any

import pytest

from malletrain.allocator.problem.allocation_problem import AllocationProblem, CostModel, JobDemand, ObjectiveMetric
from malletrain.allocator.problem.validation import validate
from malletrain.allocator.wire import messages
from malletrain.model.scaling import ScalingPoint
from malletrain.runtime.errors import InvalidInputError

GOOD = {"id": "a", "min_nodes": 1, "max_nodes": 4, "curve": (ScalingPoint(1, 10.0), ScalingPoint(4, 30.0))}


def points(*pairs: tuple[int, float]) -> tuple[ScalingPoint, ...]:
    return tuple(ScalingPoint(nodes, rate) for nodes, rate in pairs)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("jobs[0].id", {"id": ""}),
        ("jobs[0].min_nodes", {"min_nodes": 0}),
        ("jobs[0].min_nodes", {"min_nodes": -3}),
        ("jobs[0].max_nodes", {"min_nodes": 5}),
        ("jobs[0].curve", {"curve": ()}),
        ("jobs[0].curve", {"curve": points((0, 0.0))}),
        ("jobs[0].curve[1].nodes", {"curve": points((2, 1.0), (2, 2.0))}),
        ("jobs[0].curve[1].nodes", {"curve": points((2, 1.0), (1, 2.0))}),
        ("jobs[0].curve[0].nodes", {"curve": points((-1, 1.0))}),
        ("jobs[0].curve[0].rate", {"curve": points((0, 1.0), (1, 2.0))}),
        ("jobs[0].curve[0].rate", {"curve": points((1, -1.0))}),
        ("jobs[0].curve[0].rate", {"curve": points((1, math.nan))}),
        ("jobs[0].scale_up_seconds", {"scale_up_seconds": -1.0}),
        ("jobs[0].scale_down_seconds", {"scale_down_seconds": math.inf}),
        ("jobs[0].weight", {"weight": 0.0}),
        ("jobs[0].permitted_nodes[0]", {"permitted_nodes": (5,)}),
        ("jobs[0].permitted_nodes[1]", {"permitted_nodes": (2, 2)}),
        ("jobs[0].current_nodes[0]", {"current_nodes": ("elsewhere",)}),
        ("jobs[0].current_nodes[1]", {"current_nodes": ("n1", "n1")}),
    ],
)
def test_a_wrong_job_names_its_field(field: str, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        validate(AllocationProblem(("n1", "n2"), 120.0, (JobDemand(**{**GOOD, **change}),)))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("nodes[1]", {"nodes": ("n1", "n1")}),
        ("nodes[0]", {"nodes": ("",)}),
        ("forward_seconds", {"forward_seconds": 0.0}),
        ("forward_seconds", {"forward_seconds": math.nan}),
        ("expected_stay_seconds['n1']", {"expected_stay_seconds": {"n1": -1.0}}),
        ("jobs[1].id", {"jobs": (JobDemand(**GOOD), JobDemand(**GOOD))}),
        (
            "jobs[1].current_nodes[0]",
            {
                "jobs": (
                    JobDemand(**GOOD, current_nodes=("n1",)),
                    JobDemand(**{**GOOD, "id": "b"}, current_nodes=("n1",)),
                )
            },
        ),
    ],
)
def test_a_wrong_problem_names_its_field(field: str, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        validate(AllocationProblem(**{"nodes": ("n1", "n2"), "forward_seconds": 120.0, **change}))
    assert caught.value.field == field


def test_a_problem_survives_the_way_over_the_contract() -> None:
    problem = AllocationProblem(
        ("n1", "n2"),
        90.0,
        (JobDemand(**GOOD, permitted_nodes=(1, 4), weight=2.0, current_nodes=("n2",), scale_up_seconds=3.0),),
        CostModel.PAPER,
        ObjectiveMetric.SCALING_EFFICIENCY,
        {"n1": 10.0, "n2": 20.0},
    )
    assert messages.problem_from_proto(messages.problem_to_proto(problem)) == problem
