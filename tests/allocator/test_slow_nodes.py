"""Plans that leave out nodes which count as slow, where the operator wants that."""

from __future__ import annotations

import pytest

from malletrain.allocator.machine.node_stays import NodeStays
from malletrain.allocator.problem.allocation_problem import Allocation, CostModel, ObjectiveMetric
from malletrain.allocator.problem.forward_time import ForwardTime
from malletrain.allocator.problem.planner import JobCurve, PlanInput, PlannableJob, PlannableNode, plan_problem
from malletrain.allocator.problem.pools import PlannerOptions
from malletrain.allocator.solvers.solving import solve
from malletrain.allocator.wire.messages import stays_from_proto
from malletrain.model.node_needs import NodeNeeds
from malletrain.model.scaling import ScalingPoint
from malletrain.v1 import scavenger_pb2
from tests.support.builders import plannable

CURVE = JobCurve(tuple(ScalingPoint(nodes, nodes * 100.0) for nodes in range(9)), 1.0, 1.0)
NODES = tuple(PlannableNode(f"n{number}", 900.0, slow=number == 2) for number in range(4))


def options(*, avoid: bool) -> PlannerOptions:
    return PlannerOptions(ForwardTime(600.0), CostModel.STALL, ObjectiveMetric.THROUGHPUT, avoid_slow_nodes=avoid)


def nodes_of(*jobs: PlannableJob, avoid: bool = True, nodes: tuple[PlannableNode, ...] = NODES) -> dict[str, set[str]]:
    """Nodes of each job by the plan."""
    planned = plan_problem(PlanInput(nodes, jobs, curves={job.id: CURVE for job in jobs}), options(avoid=avoid))
    whole: Allocation = planned.allocation([solve(part.rest) for part in planned.parts])
    return {one.job_id: set(one.nodes) for one in whole.assignments}


def test_without_the_setting_a_slow_node_is_as_any_other() -> None:
    assert nodes_of(plannable("j1"), avoid=False) == {"j1": {"n0", "n1", "n2", "n3"}}


def test_a_job_of_more_than_one_node_is_given_no_slow_one_and_a_job_of_one_node_takes_it() -> None:
    assert nodes_of(plannable("j1")) == {"j1": {"n0", "n1", "n3"}}
    assert nodes_of(plannable("j1"), plannable("j2", high=1)) == {"j1": {"n0", "n1", "n3"}, "j2": {"n2"}}


def test_a_job_gives_up_the_slow_node_that_it_has() -> None:
    job = plannable("j1", "n0", "n2", low=2, high=2)
    (found,) = nodes_of(job).values()
    assert "n0" in found
    assert len(found - {"n2"}) == 2


def test_a_job_for_which_the_others_are_too_few_takes_slow_nodes_too() -> None:
    assert nodes_of(plannable("j1", low=4)) == {"j1": {"n0", "n1", "n2", "n3"}}
    needy = plannable("j1", low=2, needs=NodeNeeds(excluded_nodes=("n0", "n1")))
    assert nodes_of(needy) == {"j1": {"n2", "n3"}}, "of those that suit it otherwise"


def test_what_stands_for_a_fleet_takes_them() -> None:
    assert nodes_of(plannable("f1", takes_slow=True)) == {"f1": {"n0", "n1", "n2", "n3"}}


@pytest.mark.parametrize("told", [["n1"], []])
def test_the_scavenger_tells_each_time_which_nodes_are_slow(told: list[str]) -> None:
    stays = NodeStays()
    first = scavenger_pb2.GetStaysResponse(
        token="1",
        complete=True,
        nodes=[scavenger_pb2.StayingNode(name=name) for name in ("n0", "n1")],
        slow_nodes=["n0"],
    )
    stays.take_report(stays_from_proto(first), 0.0)
    stays.take_report(stays_from_proto(scavenger_pb2.GetStaysResponse(token="2", slow_nodes=told)), 0.0)
    assert [node.name for node in stays.changed(stays.seconds(("n0", "n1"), 0.0)) if node.slow] == told
