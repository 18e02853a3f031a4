"""Jobs of which each replica must be in one group: no command names a part of a replica, whatever is lost."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.job_manager.machine.jobs import JobSpec
from malletrain.job_manager.machine.state import ManagerPolicy
from malletrain.job_manager.machine.stimuli import PlanReceived
from malletrain.model.job_state import JobState
from malletrain.model.topology import TopologyPreference
from malletrain.runtime.errors import StalePlanError
from tests.job_manager.harness import MachineHarness, running
from tests.support.builders import job_spec

PAIRS = job_spec(2, 6, permitted_nodes=(2, 4, 6), nodes_per_replica=2, topology=TopologyPreference.REQUIRE_REPLICA)


def test_with_a_node_its_whole_replica_is_given_up_and_the_next_plan_completes_it() -> None:
    machine = running("a1 a2 b1 b2", PAIRS, spare="a3")
    machine.leave("a2")
    job = machine.job()
    assert (job.state, job.commanded, job.wanted) == (JobState.RESCALING, ("b1", "b2"), ("b1", "b2"))
    machine.confirm()
    machine.released("a2")
    # Groups keep their order, and the nodes of a replica follow each other, though b1 is commanded already.
    machine.plan(j1="a1 a3 b1 b2")
    assert machine.job().commanded == ("a1", "a3", "b1", "b2")


def test_two_losses_in_two_replicas_stop_a_job_and_are_told_so() -> None:
    machine = running("a1 a2 b1 b2", PAIRS)
    machine.leave("a1", "b2")
    job = machine.job()
    assert job.state is JobState.STOPPING
    assert "2 remain, 0 of them in whole replicas, its smallest scale is 2" in job.reason
    anywhere = running("a1 a2 b1 b2", job_spec(2, 6, permitted_nodes=(2, 4, 6), nodes_per_replica=2))
    anywhere.leave("a1", "b2")
    assert anywhere.job().commanded == ("a2", "b1"), "where replicas need no group, any two nodes make one"


def test_a_plan_that_a_node_has_left_is_applied_by_whole_replicas() -> None:
    machine = running("a1 a2", PAIRS, spare="b1 b2 c1 c2")
    machine.leave("b1")
    result = machine(
        PlanReceived(machine.state.generation + 1, (("j000001", ("a1", "a2", "b1", "b2", "c1", "c2")),), True)
    )
    assert machine.job().commanded == ("a1", "a2", "c1", "c2")
    assert [entry.nodes for entry in result.omitted] == [("b1", "b2")]


def test_a_shrink_may_choose_other_nodes_of_a_group_for_a_replica() -> None:
    machine = running("a1 a2 a3 a4 b1 b2", PAIRS)
    machine.plan(j1="a2 a3 b1 b2")
    assert machine.job().commanded == ("a2", "a3", "b1", "b2")
    machine.leave("a2")
    assert machine.job().commanded == ("b1", "b2")


def whole_replicas_of(nodes: tuple[str, ...]) -> bool:
    """Whether nodes that follow each other in pairs are of one group each, by the letters of their names."""
    return len(nodes) % 2 == 0 and all(one[0] == other[0] for one, other in zip(nodes[::2], nodes[1::2], strict=True))


NODES = [f"{group}{number}" for group in "abc" for number in range(1, 5)]


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_no_command_ever_names_a_part_of_a_replica(data: st.DataObject) -> None:
    machine = MachineHarness(ManagerPolicy(max_parallel=2))
    machine.idle(*NODES)
    machine.submit(PAIRS, job_spec(1, 6))
    for _ in range(data.draw(st.integers(1, 12))):
        step(machine, data)
        job = machine.job()
        if not job.state.final:
            assert whole_replicas_of(job.wanted)
            assert job.stop is not None or whole_replicas_of(job.commanded), job.commanded


def step(machine: MachineHarness, data: st.DataObject) -> None:
    idle = sorted(machine.state.idle or ())
    event = data.draw(st.sampled_from(["leave", "join", "plan", "plan", "plan", "confirm", "released", "end", "wait"]))
    job = machine.job()
    if event == "leave" and idle:
        machine.leave(*data.draw(st.sets(st.sampled_from(idle), min_size=1, max_size=3)))
    elif event == "join":
        machine.join(*data.draw(st.sets(st.sampled_from(NODES), min_size=1, max_size=4)))
    elif event == "plan":
        try:
            machine(PlanReceived(machine.state.generation + 1, planned(machine, data), data.draw(st.booleans())))
        except StalePlanError:
            return
    elif event == "confirm" and job.supervised and job.stop is None:
        machine.confirm()
    elif event == "released" and job.releases:
        machine.released(*(release.node for release in job.releases))
    elif event == "end" and job.stop is not None:
        machine.end()
    elif event == "wait":
        machine.wait(100.0)


def planned(machine: MachineHarness, data: st.DataObject) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """A plan as the Allocator makes it: pairs of one group each, which keep or contain what the job has."""
    pairs = [
        pair
        for group in "abc"
        for nodes in [data.draw(st.permutations([node for node in NODES if node[0] == group]))]
        for pair in zip(nodes[::2], nodes[1::2], strict=True)
    ]
    chosen = data.draw(st.lists(st.sampled_from(pairs), max_size=3, unique=True))
    own = tuple(node for pair in sorted(chosen) for node in pair)
    commanded = machine.job().commanded
    if commanded and whole_replicas_of(commanded) and data.draw(st.booleans()):
        more = tuple(node for pair in chosen if not set(pair) & set(commanded) for node in pair)
        own = (commanded + more)[:6] if data.draw(st.booleans()) else commanded[:2]
    others = [node for node in NODES if node not in own]
    second = tuple(data.draw(st.lists(st.sampled_from(others), max_size=4, unique=True)))
    return (("j000001", own), ("j000002", second))


def test_the_spec_says_how_many_nodes_must_be_together() -> None:
    assert PAIRS.grouped_nodes == 2
    assert JobSpec(name="a", command=("b",), working_directory="/", min_nodes=1, max_nodes=2).grouped_nodes == 1
