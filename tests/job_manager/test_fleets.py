"""Fleets under JobManager: places, GPUs of shared nodes, leaves, failures; step by step in the state machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from malletrain.fleet.spec import FleetSpec
from malletrain.job_manager.machine.jobs import JobSpec
from malletrain.job_manager.machine.sharing import owner_shares
from malletrain.job_manager.machine.state import ManagerPolicy
from malletrain.job_manager.machine.stimuli import Cancelled, NodesChanged, Outcome, PlanReceived
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.job_state import JobState
from malletrain.model.node_use import NodeUse
from malletrain.runtime.errors import StalePlanError
from tests.job_manager.harness import MachineHarness, count_uses
from tests.support.builders import job_spec

FLEET = FleetSpec("fleet", max_nodes=2, gpus_per_node=2, samples_per_epoch=10.0)


def member(low: int = 1, high: int = 4, **changes: Any) -> JobSpec:
    return job_spec(low, high, fleet=FLEET, **changes)


def two_members(a: str = "n1#0 n2#0", b: str = "n1#1", policy: ManagerPolicy | None = None) -> MachineHarness:
    """Members that train on GPUs of n1 and n2; an ordinary job waits, and n3 and n4 are idle."""
    machine = MachineHarness(policy or ManagerPolicy())
    machine.idle("n1", "n2", "n3", "n4")
    machine.submit(member(), member())
    machine.submit(job_spec())
    machine.plan(j1=a, j2=b)
    for job_id in ("j000001", "j000002"):
        machine.confirm(job_id)
    return machine


def states(machine: MachineHarness) -> str:
    return " ".join(machine.job(f"j{number:06d}").state.value for number in range(1, machine.state.last_number + 1))


def test_members_share_nodes_with_each_other_only() -> None:
    machine = two_members()
    assert states(machine) == "RUNNING RUNNING WAITING"
    assert machine.job("j000001").reason == "trains on 2 GPUs"
    assert machine.job("j000002").reason == "trains on 1 GPU"
    machine.submit(member(), member())
    for assignments, message in [
        ({"j3": "n2"}, r"node n2 \(for job j000003\) is fleet f000001's"),
        ({"j4": "n2#1"}, r"GPU n2#1 \(for job j000004\) is fleet f000001's"),
        ({"j1": "n1#0 n1#1"}, r"GPU n1#1 \(for job j000001\) is job j000002's"),
        ({"j1": "n1#0 n3"}, "job j000001: expected GPUs, as for every member of a fleet, got node n3"),
        ({"j1": "n1#0 n3#2"}, "job j000001: expected GPUs with numbers below 2, got n3#2"),
        ({"j3": "n3#0"}, "job j000003: expected nodes, got GPU n3#0"),
        ({"j1": "n1#0 n9#0"}, r"GPU n9#0 \(for job j000001\) is not idle"),
        ({"j1": "n1#0 n1#0"}, "job j000001: expected each node or GPU once, got n1#0 twice"),
        ({"j3": "n3 n3"}, "job j000003: expected each node or GPU once, got n3 twice"),
        ({"j2": "n1#1 n3#0 n3#1 n4#0 n4#1"}, "job j000002: expected 1-4 GPUs, got 5"),
        ({"j3": "n3", "j4": "n3#0"}, r"GPU n3#0 \(for job j000004\) is job j000003's"),
    ]:
        with pytest.raises(StalePlanError, match=message):
            machine.plan(**assignments)
    machine.plan(j2="n1#1 n2#1", j3="n3", j4="n4#0", j5="n4#1")
    assert [machine.job(f"j{number:06d}").held for number in (2, 3, 5)] == [("n1#1", "n2#1"), ("n3",), ("n4#1",)]


def test_a_part_of_a_plan_that_does_not_fit_leaves_gpus_with_their_members() -> None:
    machine = two_members()
    plan = (("j000001", ("n1#0", "n2#0", "n2#1")), ("j000002", ("n9#0",)), ("j000003", ("n1", "n3")))
    result = machine(PlanReceived(2, plan, partial=True))
    assert [(omission.job_id, omission.nodes) for omission in result.omitted] == [
        ("j000002", ("n9#0",)),
        ("j000003", ("n1",)),
    ]
    assert machine.job("j000001").wanted == ("n1#0", "n2#0", "n2#1")
    assert (machine.job("j000002").wanted, machine.job("j000003").wanted) == (("n1#1",), ("n3",))


def test_members_exchange_gpus_and_an_untouched_one_is_left_alone() -> None:
    machine = two_members("n1#0", "n1#1")
    untouched = machine.job("j000002")
    machine.plan(j1="n2#0 n2#1")
    assert machine.job("j000001").reason_code is JobReason.PLAN_MOVED
    machine.end("j000001", Outcome.STOPPED)
    assert machine.job("j000001").held == ("n2#0", "n2#1")
    machine.confirm("j000001")
    machine.plan(j1="n2#1 n1#0")
    assert machine.job("j000001").commanded == ("n2#1", "n1#0"), "gains and loses at once"
    assert machine.job("j000002") == untouched
    machine = two_members("n1#0", "n1#1")
    machine.plan(j1="n1#1", j2="n1#0")
    assert states(machine) == "STOPPING STOPPING WAITING", "each waits for the other's, and gives up its own first"
    machine.end("j000001", Outcome.STOPPED)
    assert machine.job("j000001").held == (), "the other one still has it"
    machine.end("j000002", Outcome.STOPPED)
    assert [machine.job(job_id).held for job_id in ("j000001", "j000002")] == [("n1#1",), ("n1#0",)]


def test_a_node_that_leaves_takes_its_gpus_from_all_members_at_once() -> None:
    machine = two_members("n1#0 n2#0", "n1#1")
    result = machine(NodesChanged(frozenset(), frozenset({"n1"}), machine.now))
    assert {job.id for job in result.changed} == {"j000001", "j000002"}
    one, two = machine.job("j000001"), machine.job("j000002")
    assert (one.state, one.commanded, one.wanted) == (JobState.RESCALING, ("n2#0",), ("n2#0",))
    assert (two.state, two.reason_code) == (JobState.STOPPING, JobReason.PREEMPTED_BELOW_MINIMUM)
    assert [release.node for job in (one, two) for release in job.releases] == ["n1#0", "n1#1"]
    assert (one.preemptions, two.preemptions) == (1, 1)
    machine.join("n1")
    with pytest.raises(StalePlanError, match=r"node n1 \(for job j000003\) is still being released"):
        machine.plan(j3="n1")
    machine.released("n1#0")
    with pytest.raises(StalePlanError, match="still being released"):
        machine.plan(j3="n1")
    machine.released("n1#1", job_id="j000002")
    machine.end("j000002", Outcome.STOPPED)
    machine.plan(j3="n1")
    assert machine.job("j000003").held == ("n1",)


def test_a_whole_node_waits_until_the_last_member_is_off_it() -> None:
    machine = two_members("n1#0", "n1#1")
    machine.plan(j1="", j2="", j3="n1")
    assert states(machine) == "STOPPING STOPPING WAITING"
    machine.end("j000001", Outcome.STOPPED)
    assert machine.job("j000003").state is JobState.WAITING
    machine.end("j000002", Outcome.STOPPED)
    assert machine.job("j000003").held == ("n1",)


def test_a_member_that_fails_for_good_leaves_the_others_alone() -> None:
    machine = two_members()
    other = machine.job("j000002")
    machine.state = replace(
        machine.state,
        jobs={**machine.state.jobs, "j000001": replace(machine.job(), spec=member(max_restarts=0))},
    )
    machine.end("j000001")
    assert machine.job("j000001").state is JobState.FAILED
    assert machine.job("j000002") == other
    machine.plan(j2="n1#1 n1#0")
    assert machine.job("j000002").held == ("n1#1", "n1#0")


def test_a_fleet_takes_one_place_until_its_last_member_has_ended() -> None:
    machine = MachineHarness(ManagerPolicy(max_parallel=2))
    machine.idle("n1", "n2")
    machine.submit(job_spec())
    machine.submit(member(), member(), member())
    machine.submit(job_spec(), job_spec())
    assert states(machine) == "WAITING WAITING WAITING WAITING QUEUED QUEUED"
    assert machine.job("j000004").reason == "admitted to place 2 of 2, waits for nodes"
    machine(Cancelled("j000002"))
    machine(Cancelled("j000003"))
    assert machine.job("j000005").state is JobState.QUEUED
    machine(Cancelled("j000004"))
    assert states(machine).endswith("WAITING QUEUED")
    machine.submit(member(), member())
    machine(Cancelled("j000007"))
    machine(Cancelled("j000001"))
    assert states(machine).endswith("WAITING WAITING CANCELLED QUEUED")


def test_a_fleet_asks_for_the_burst_buffer_of_all_its_members_together() -> None:
    machine = MachineHarness(ManagerPolicy(max_parallel=3, burst_buffer_gb=4))
    machine.submit(job_spec(burst_buffer_gb=2))
    machine.submit(member(burst_buffer_gb=2), member(burst_buffer_gb=1), member())
    machine.submit(job_spec())
    assert states(machine) == "WAITING QUEUED QUEUED QUEUED WAITING"
    assert {machine.job(f"j{number:06d}").reason for number in (2, 3, 4)} == {
        "waits for 3 GB of burst buffer, 2 GB of 4 GB are free"
    }
    machine(Cancelled("j000001"))
    assert states(machine) == "CANCELLED WAITING WAITING WAITING WAITING"


def test_limits_of_owners_count_a_fleet_once() -> None:
    machine = MachineHarness(ManagerPolicy(max_parallel=8, max_parallel_per_owner=2))
    machine.submit(member(), member(), owner="ada")
    machine.submit(job_spec(), job_spec(), owner="ada")
    assert states(machine) == "WAITING WAITING WAITING QUEUED"
    assert machine.job("j000004").reason_code is JobReason.OWNER_LIMIT


def test_a_shared_node_counts_once() -> None:
    policy = ManagerPolicy(fair_share_half_life_seconds=3600.0)
    machine = MachineHarness(policy)
    machine.idle("n1", "n2", "n3")
    machine.submit(member(), member(), owner="ada")
    machine.submit(job_spec(), owner="bob")
    machine.plan(j1="n1#0 n2#0", j2="n1#1", j3="n3")
    shares = {share.owner: share for share in owner_shares(machine.state, machine.now, 3600.0)}
    assert (shares["ada"].nodes, shares["bob"].nodes) == (2, 1)
    machine.confirm("j000001")
    assert count_uses(machine.state) == {
        NodeUse.TRAINING: 2,  # one with a member that still boots
        NodeUse.BOOTING: 1,
        NodeUse.STALLED: 0,
        NodeUse.STOPPING: 0,
        NodeUse.UNASSIGNED: 0,
    }
    machine.leave("n1")
    assert count_uses(machine.state)[NodeUse.TRAINING] == 1
