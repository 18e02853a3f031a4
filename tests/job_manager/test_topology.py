"""How near to each other a job's nodes are to be: checked, kept and told."""

from __future__ import annotations

import os
from typing import Any

import pytest

from malletrain.job_manager import wire
from malletrain.job_manager.machine.jobs import JobSpec
from malletrain.job_manager.storage.store import decode, encode
from malletrain.job_manager.submission import check_specs
from malletrain.job_manager.visibility import visible_to
from malletrain.model.topology import TopologyPreference
from malletrain.profiler.machine.options import ProfilingMode
from malletrain.profiler.wire import declaration_of
from malletrain.runtime.access.identity import Identity, Role
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.messages import terms_of
from malletrain.v1 import fleet_pb2, resources_pb2
from tests.support.builders import job, job_spec, spec_message

PREFER = resources_pb2.TOPOLOGY_PREFERENCE_PREFER
REQUIRE_REPLICA = resources_pb2.TOPOLOGY_PREFERENCE_REQUIRE_REPLICA
TORCHRUN = resources_pb2.LAUNCHER_BACKEND_TORCHRUN
REQUIRE = resources_pb2.TOPOLOGY_PREFERENCE_REQUIRE


def checked(**fields: Any) -> JobSpec:
    (spec,) = check_specs([spec_message(**fields)], os.defpath)
    return spec


def test_it_is_submitted_stored_and_told() -> None:
    spec = checked(topology=PREFER)
    assert spec.topology is TopologyPreference.PREFER
    stored = decode(encode(job(1, spec=spec)))
    assert stored.spec.topology is TopologyPreference.PREFER
    assert wire.job_message(stored).spec.topology == PREFER


def test_without_one_it_does_not_matter() -> None:
    assert checked().topology is TopologyPreference.NONE
    assert wire.spec_message(job_spec()).topology == resources_pb2.TOPOLOGY_PREFERENCE_UNSPECIFIED


def test_an_unknown_one_is_refused() -> None:
    with pytest.raises(InvalidInputError) as error:
        checked(topology=4)
    assert error.value.field == "specs[0].topology"


def test_a_required_group_has_a_level() -> None:
    spec = checked(topology=REQUIRE, topology_level=2)
    assert (spec.topology, spec.topology_level) == (TopologyPreference.REQUIRE, 2)
    stored = decode(encode(job(1, spec=spec)))
    assert (stored.spec.topology, stored.spec.topology_level) == (TopologyPreference.REQUIRE, 2)
    shown = visible_to(Identity("bob", Role.USER, "t1", 0.0, 1.0), wire.job_message(stored))
    assert (shown.spec.topology, shown.spec.topology_level) == (REQUIRE, 2)
    declared = declaration_of(shown)
    assert declared.needs_certain_nodes
    assert declared.mode is ProfilingMode.NEVER


def test_replicas_can_each_be_required_to_be_in_one_group() -> None:
    replicas = {"nodes_per_replica": 2, "min_nodes": 2, "max_nodes": 6, "backend": TORCHRUN}
    spec = checked(topology=REQUIRE_REPLICA, topology_level=1, **replicas)
    assert (spec.topology, spec.topology_level, spec.grouped_nodes) == (TopologyPreference.REQUIRE_REPLICA, 1, 2)
    stored = decode(encode(job(1, spec=spec)))
    assert (stored.spec.topology, stored.spec.grouped_nodes) == (TopologyPreference.REQUIRE_REPLICA, 2)
    told = wire.job_message(stored)
    assert (told.spec.topology, told.spec.nodes_per_replica) == (REQUIRE_REPLICA, 2)
    assert terms_of(told.spec).grouped_nodes == 2
    assert declaration_of(told).mode is ProfilingMode.NEVER
    with pytest.raises(InvalidInputError) as error:
        checked(topology=REQUIRE_REPLICA)
    assert (
        str(error.value) == "specs[0].nodes_per_replica: expected at least 2, as topology require-replica says, got 0"
    )


@pytest.mark.parametrize(("topology", "level"), [(REQUIRE, 9), (REQUIRE, -1), (PREFER, 1), (0, 2)])
def test_levels_that_can_not_be_meant_are_refused(topology: int, level: int) -> None:
    with pytest.raises(InvalidInputError) as error:
        checked(topology=topology, topology_level=level)
    assert error.value.field == "specs[0].topology_level"


def test_members_of_fleets_have_none() -> None:
    fleet = fleet_pb2.FleetSpec(name="fleet", max_nodes=2, gpus_per_node=2, samples_per_epoch=10.0)
    with pytest.raises(InvalidInputError) as error:
        checked(topology=PREFER, fleet=fleet, max_nodes=2)
    assert error.value.field == "specs[0].topology"
    with pytest.raises(InvalidInputError) as error:
        checked(topology=REQUIRE_REPLICA, nodes_per_replica=2, fleet=fleet, max_nodes=2)
    assert error.value.field == "specs[0].nodes_per_replica"


def test_everybody_sees_it() -> None:
    told = wire.job_message(job(1, spec=job_spec(topology=TopologyPreference.PREFER), owner="ann"))
    shown = visible_to(Identity("bob", Role.USER, "t1", 0.0, 1.0), told)
    assert shown.spec.topology == PREFER
