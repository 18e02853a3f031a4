"""Plans for jobs that need amounts of their nodes, e.g. memory: against brute force, and by few kinds of nodes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.allocator.explanation import sentences
from malletrain.allocator.explanation.forced_by_kind import ByKinds
from malletrain.allocator.explanation.worth import PartExplainer, PlannedPart, Reason
from malletrain.allocator.machine.cluster_cache import ClusterCache
from malletrain.allocator.problem.allocation_problem import CostModel, NeedCount, ObjectiveMetric
from malletrain.allocator.problem.forward_time import ForwardTime
from malletrain.allocator.problem.planner import (
    JobCurve,
    PlanInput,
    PlannableJob,
    PlannableNode,
    PlanProblem,
    plan_problem,
)
from malletrain.allocator.problem.pools import PlannerOptions
from malletrain.allocator.solvers.solver_process import SolverProcess
from malletrain.allocator.solvers.solving import solve
from malletrain.allocator.wire.messages import job_from_proto, node_from_proto
from malletrain.model.node_needs import NodeNeeds, suits
from malletrain.model.scaling import ScalingPoint
from malletrain.runtime.kernel.documents import from_document
from malletrain.v1 import resources_pb2
from tests.allocator.grouped_problems import brute_force
from tests.allocator.test_node_kinds import check, suited
from tests.support.builders import job_message

OPTIONS = PlannerOptions(ForwardTime(120.0), CostModel.STALL, ObjectiveMetric.THROUGHPUT)
GIB = 1024


NODES = st.builds(
    PlannableNode,
    name=st.just(""),
    expected_stay_seconds=st.sampled_from([0.0, 100.0, 900.0]),
    gpus=st.sampled_from([0, 2, 4]),
    cores=st.sampled_from([0, 16, 31, 32, 64]),
    memory_mib=st.integers(0, 4).map(lambda size: size * 64 * GIB + size),
    gpu_memory_mib=st.sampled_from([0, 40 * GIB, 80 * GIB]),
)
NEEDS = st.builds(
    NodeNeeds,
    excluded_nodes=st.sampled_from([(), (), ("n0",)]),
    gpu_memory_mib=st.sampled_from([0, 0, 40 * GIB, 40 * GIB + 1]),
    gpus=st.sampled_from([0, 0, 1, 4]),
    cores=st.sampled_from([0, 0, 32, 65]),
    memory_mib=st.sampled_from([0, 0, 64 * GIB, 128 * GIB + 2, 128 * GIB + 3]),
)
RATES = st.lists(st.integers(1, 100), min_size=3, max_size=3)


def planned(
    nodes: list[PlannableNode], needs: list[NodeNeeds], rates: list[list[int]], smallest: int = 1
) -> PlanProblem:
    jobs = tuple(PlannableJob(f"j{index}", smallest, 3, needs=need) for index, need in enumerate(needs))
    curves = {
        job.id: JobCurve(tuple(ScalingPoint(count, float(rate)) for count, rate in enumerate(own, 1)), 5.0, 5.0)
        for job, own in zip(jobs, rates, strict=True)
    }
    return plan_problem(PlanInput(tuple(nodes), jobs, curves=curves), OPTIONS)


@settings(deadline=None, max_examples=80)
@given(nodes=st.lists(NODES, max_size=5), needs=st.lists(NEEDS, min_size=1, max_size=3), data=st.data())
def test_it_is_exact(
    process: SolverProcess, nodes: list[PlannableNode], needs: list[NodeNeeds], data: st.DataObject
) -> None:
    named = [node._replace(name=f"n{index}") for index, node in enumerate(nodes)]
    problem = planned(named, needs, [data.draw(RATES) for _ in needs])
    for demand, need in zip(problem.whole.jobs, needs, strict=True):
        assert suited(problem.whole, demand) == {node.name for node in named if suits(need, node.name, node.traits)}
    answers = [solve(part.rest, process=process) for part in problem.parts]
    check(problem.whole, {entry.job_id: entry.nodes for entry in problem.allocation(answers).assignments})
    for part, answer in zip(problem.parts, answers, strict=True):
        assert answer.objective == pytest.approx(brute_force(part.rest), rel=1e-6, abs=1e-6)


def test_nodes_that_no_job_tells_apart_are_one_kind() -> None:
    nodes = [
        PlannableNode(f"n{number:03}", cores=number, memory_mib=256 * GIB + number, gpu_memory_mib=number, gpus=number)
        for number in range(400)
    ]
    rates = [[1, 2, 3]] * 3
    needs = [NodeNeeds(), NodeNeeds(memory_mib=256 * GIB + 300), NodeNeeds(memory_mib=256 * GIB + 100)]
    whole = planned(nodes, needs, rates).whole
    assert [len(kind.nodes) for kind in whole.kinds] == [100, 200]
    assert [job.needs for job in whole.jobs] == [
        (),
        (NeedCount("at least 262444 MiB of memory", 100),),
        (NeedCount("at least 262244 MiB of memory", 300),),
    ]


@pytest.mark.parametrize(
    ("needs", "smallest", "binding"),
    [
        (NodeNeeds(gpu_memory_mib=40 * GIB, gpus=2), 2, "what binds is GPUs of at least 40 GiB"),
        (NodeNeeds(gpus=2, cores=32), 3, "what binds is each of at least 2 GPUs, at least 32 cores"),
        (NodeNeeds(cores=64, memory_mib=1 << 20), 1, "what binds is at least 1 TiB of memory"),
    ],
)
def test_an_explanation_says_which_amount_binds(
    process: SolverProcess, needs: NodeNeeds, smallest: int, binding: str
) -> None:
    nodes = [
        PlannableNode("g1", gpus=4, gpu_memory_mib=80 * GIB, cores=64),
        PlannableNode("g2", gpus=4, cores=32),
        PlannableNode("c1", cores=16, memory_mib=256 * GIB),
    ]
    problem = planned(nodes, [needs], [[100, 150, 180]], smallest)
    (part,) = problem.parts
    answer = solve(part.rest, process=process)
    had = {entry.job_id: entry.nodes for entry in answer.assignments}
    account = PartExplainer(PlannedPart("", part, had), ByKinds(process)).job("j0")
    assert account.more_reason is Reason.UNSUITABLE_NODES
    assert any(binding in line for line in sentences.of_job(account, part.rest))


def test_amounts_of_nodes_change_nothing_where_no_job_needs_any() -> None:
    plain = [PlannableNode(f"n{number}", 60.0 * number) for number in range(5)]
    other = [node._replace(cores=node.name == "n1", memory_mib=7, gpu_memory_mib=9) for node in plain]
    needs, rates = [NodeNeeds(), NodeNeeds(constraint="ib"), NodeNeeds(excluded_nodes=("n3",))], [[9, 10, 20]] * 3
    for asked in (needs, needs[:1] * 3):
        assert planned(plain, asked, rates).whole == planned(other, asked, rates).whole


def test_what_services_tell_of_amounts_reaches_the_plan() -> None:
    message = resources_pb2.Node(name="g1", gpu_type="a100", gpus=4, cores=64, memory_mib=512000, gpu_memory_mib=81920)
    node = node_from_proto(message)
    assert (node.cores, node.memory_mib, node.gpu_memory_mib) == (64, 512000, 81920)
    cache = ClusterCache()
    cache.update_nodes([node], snapshot=True)
    cache.update_stays([PlannableNode("g1", 77.0, "gpu", 4)])  # of what a node is, these tell no more
    assert list(cache.nodes) == [node._replace(expected_stay_seconds=77.0, pool="gpu")]
    needs = resources_pb2.NodeNeeds(gpu_memory_mib=40960, gpus=4, cores=32, memory_mib=1 << 18)
    told = job_from_proto(job_message("j000001", needs=needs)).plannable.needs
    assert told == NodeNeeds(gpu_memory_mib=40960, gpus=4, cores=32, memory_mib=1 << 18)


def test_nodes_are_recorded_as_earlier_versions_did() -> None:
    """Recordings and documents of nodes from before a field have fewer entries."""
    assert from_document(PlannableNode, ["n1", 1.0, "main", 4, "a100", ["ib"]]) == PlannableNode(
        "n1", 1.0, "main", 4, "a100", ("ib",)
    )
