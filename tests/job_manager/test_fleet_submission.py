"""What is wrong with a fleet is said by the name of its field, and nothing of it is begun."""

from __future__ import annotations

import os
from typing import Any

import pytest

from malletrain.fleet.problem import FleetPlanner
from malletrain.fleet.spec import FleetSpec
from malletrain.job_manager.storage.store import decode, encode
from malletrain.job_manager.submission import MAX_MEMBERS, check_specs
from malletrain.job_manager.wire import job_message
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.fleet_messages import spec_to_proto
from malletrain.v1 import fleet_pb2, resources_pb2
from tests.job_manager.harness import MachineHarness
from tests.support.builders import spec_message

PATH = os.defpath


def fleet(**changes: Any) -> fleet_pb2.FleetSpec:
    return fleet_pb2.FleetSpec(**{"name": "f", "max_nodes": 2, "gpus_per_node": 2, "samples_per_epoch": 10.0} | changes)


def member(name: str, common: fleet_pb2.FleetSpec | None = None, **changes: Any) -> resources_pb2.JobSpec:
    return spec_message(name=name, fleet=common or fleet(), **{"max_nodes": 4} | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": " "}, "name: expected 1 to 128 printable characters, got ' '"),
        ({"max_nodes": 0}, "max_nodes: expected 1 to 1000000, got 0"),
        ({"gpus_per_node": -1}, "gpus_per_node: expected 1 to 1024"),
        ({"gpus_per_node": 1025}, "gpus_per_node: expected 1 to 1024"),
        ({"rate_tolerance": -0.5}, "rate_tolerance: expected a finite number, at least 0, got -0.5"),
        ({"rate_tolerance": float("nan")}, "rate_tolerance: expected a finite number, at least 0, got nan"),
        ({"active_share": 1.5}, "active_share: expected 0 to 1, got 1.5"),
        ({"samples_per_epoch": 0.0}, "samples_per_epoch: expected above 0, which planners other than MILP need, got 0"),
        ({"samples_per_epoch": float("inf")}, "samples_per_epoch: expected a finite number"),
        ({"preprocess_rate": -1.0}, "preprocess_rate: expected a finite number, at least 0, got -1.0"),
        ({"checkpoint_seconds": -1.0}, "checkpoint_seconds: expected a finite number, at least 0, got -1.0"),
        ({"feed": "data"}, "feed: expected MODULE:FUNCTION, or nothing, got 'data'"),
        ({"planner": 99}, "planner: expected a known planner, got 99"),
        ({"pace": 99}, "pace: expected a known pace, got 99"),
        ({"beyond_peak": 99}, "beyond_peak: expected a known value, got 99"),
    ],
)
def test_bad_fields_of_a_fleet_are_named(changes: dict[str, Any], message: str) -> None:
    bad = fleet(**changes)
    with pytest.raises(InvalidInputError) as caught:
        check_specs([member("a", bad), member("b", bad)], PATH)
    assert str(caught.value).startswith(f"specs[0].fleet.{message}")


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (spec_message(), "fleet: expected a fleet in all specs of a submission, or in none"),
        (member("b", fleet(name="g")), "fleet: expected the same as specs[0].fleet"),
        (member("a"), "name: expected another name than that of specs[0], got 'a'"),
        (member("b", max_nodes=5), "max_nodes: expected at most 4, the GPUs of fleet.max_nodes (2) nodes, got 5"),
        (member("b", min_nodes=5, max_nodes=5), "min_nodes: expected at most 4, the GPUs of fleet.max_nodes (2) nodes"),
        (member("b", slots_per_node=2), "slots_per_node: expected 1: a member has one worker a GPU, got 2"),
        (
            member("b", curve=[resources_pb2.ScalingPoint(nodes=1, rate=0.0)]),
            "curve[0].rate: expected above 0, as for every member, got 0.0",
        ),
        (member("b", fleet(feed="data:samples")), "fleet: expected the same as specs[0].fleet"),
        (
            member("b", command=["no-such-program"]),
            "command[0]: expected a path, or a program that is on the services' PATH",
        ),
        (
            member("b", burst_buffer_gb=30),
            "burst_buffer_gb: expected at most 50 GB of all members together, the quota "
            "(job_manager.burst_buffer_gb), got 60",
        ),
    ],
)
def test_members_that_do_not_fit_are_named(second: resources_pb2.JobSpec, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_specs([member("a", burst_buffer_gb=30), second], PATH, 50)
    assert str(caught.value).startswith(f"specs[1].{message}")


def test_the_feed_of_a_fleet_is_what_its_members_are_told() -> None:
    for feed in ("data:samples", ""):
        told = {"MALLETRAIN_FEED": feed}
        (spec,) = check_specs([member("a", fleet(feed=feed), environment=told)], PATH)
        assert spec.fleet is not None
        assert (spec.fleet.feed, spec.fleet.shared) == (feed, bool(feed))
        assert spec_to_proto(spec.fleet).feed == feed
        for other in ({}, {"MALLETRAIN_FEED": "data:other"}):
            with pytest.raises(InvalidInputError) as caught:
                check_specs([member("a", fleet(feed=feed), environment=other)], PATH)
            assert str(caught.value).startswith("specs[0].environment[MALLETRAIN_FEED]: expected")


def test_a_fleet_of_an_earlier_version_says_nothing_of_a_feed() -> None:
    machine = MachineHarness()
    machine.submit(*check_specs([member("a")], PATH))
    body = encode(machine.job("j000001"))
    earlier = body.replace(',"feed":null', "")
    assert len(earlier) < len(body)
    (spec,) = check_specs([member("a", environment={"MALLETRAIN_FEED": "data:samples"})], PATH)
    for terms in (decode(earlier).spec.fleet, spec.fleet):
        assert terms is not None
        assert (terms.feed, terms.shared) == (None, None)
        assert not spec_to_proto(terms).HasField("feed")


def test_a_fleet_has_not_too_many_members() -> None:
    with pytest.raises(InvalidInputError, match="specs: expected 1 to 1000 jobs, got 1001"):
        check_specs([member(str(number)) for number in range(MAX_MEMBERS + 1)], PATH)


def test_defaults_are_filled_in_and_a_fleet_is_known_by_its_first_member() -> None:
    specs = check_specs([member("a"), member("b")], PATH)
    assert specs[0].fleet == FleetSpec("f", 2, gpus_per_node=2, samples_per_epoch=10.0)
    assert specs[0].slots_on([4, 8]) == 1, "a worker for each GPU"
    machine = MachineHarness()
    machine.submit(make_checked())
    machine.submit(*specs)
    jobs = [machine.job(name) for name in ("j000001", "j000002", "j000003")]
    assert [job.fleet_id for job in jobs] == ["", "f000002", "f000002"]
    messages = [job_message(job) for job in jobs]
    assert [message.fleet_id for message in messages] == ["", "f000002", "f000002"]
    assert not messages[0].spec.HasField("fleet")
    whole = fleet(planner=fleet_pb2.FLEET_PLANNER_AUTO, rate_tolerance=0.11, active_share=0.8)
    whole.pace, whole.beyond_peak = fleet_pb2.PACE_LOCKSTEP, fleet_pb2.BEYOND_PEAK_AVOID
    assert messages[1].spec.fleet == whole


def test_every_value_of_the_enums_has_a_name_here() -> None:
    for value in fleet_pb2.FleetPlanner.values():
        (spec,) = check_specs([member("a", fleet(planner=value))], PATH)
        assert spec.fleet is not None
        expected = fleet_pb2.FleetPlanner.Name(value).removeprefix("FLEET_PLANNER_")
        assert spec.fleet.planner is (FleetPlanner.AUTO if not value else FleetPlanner[expected])
    for pace in fleet_pb2.Pace.values():
        check_specs([member("a", fleet(pace=pace))], PATH)
    for beyond in fleet_pb2.BeyondPeak.values():
        check_specs([member("a", fleet(beyond_peak=beyond))], PATH)
    unmeasured = fleet(planner=fleet_pb2.FLEET_PLANNER_MILP, samples_per_epoch=0.0, active_share=0.0)
    (spec,) = check_specs([member("a", unmeasured)], PATH)
    assert spec.fleet is not None
    assert spec.fleet.active_share == 0.0


def test_stored_members_come_back_and_jobs_of_earlier_versions_are_members_of_none() -> None:
    machine = MachineHarness()
    machine.submit(*check_specs([member("a"), member("b")], PATH))
    body = encode(machine.job("j000002"))
    assert decode(body) == machine.job("j000002")
    assert decode(body.replace('"fleet":{', '"fleet":{"newer":2,', 1)) == machine.job("j000002")
    machine.submit(make_checked())
    body = encode(machine.job("j000003"))
    earlier = body.replace(',"fleet":null', "").replace(',"fleet_number":null', "")
    assert len(earlier) < len(body)
    assert decode(earlier) == machine.job("j000003")


def make_checked() -> Any:
    return check_specs([spec_message()], PATH)[0]
