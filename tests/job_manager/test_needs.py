"""What a job needs of its nodes: checked, kept and told."""

from __future__ import annotations

import os
from typing import Any

import pytest

from malletrain.job_manager import wire
from malletrain.job_manager.machine.jobs import JobSpec
from malletrain.job_manager.storage.store import decode, encode
from malletrain.job_manager.submission import check_specs
from malletrain.job_manager.visibility import visible_to
from malletrain.model.node_needs import NO_NEEDS, NodeNeeds
from malletrain.runtime.access.identity import Identity, Role
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import fleet_pb2, resources_pb2
from tests.support.builders import job, job_spec, spec_message

NEEDS = NodeNeeds("a100", "ib&big", "main", ("n1", "n2"), 40960, 4, 32, 262144)
MESSAGE = resources_pb2.NodeNeeds(
    gpu="a100",
    constraint="ib&big",
    pool="main",
    excluded_nodes=["n1", "n2"],
    gpu_memory_mib=40960,
    gpus=4,
    cores=32,
    memory_mib=262144,
)


def checked(**fields: Any) -> JobSpec:
    (spec,) = check_specs([spec_message(**fields)], os.defpath)
    return spec


def test_they_are_submitted_stored_and_told() -> None:
    spec = checked(needs=MESSAGE)
    assert spec.needs == NEEDS
    stored = decode(encode(job(1, spec=spec)))
    assert stored.spec.needs == NEEDS
    assert wire.job_message(stored).spec.needs == MESSAGE


def test_a_job_without_needs_takes_any_node() -> None:
    assert checked().needs == NO_NEEDS
    assert checked(needs=resources_pb2.NodeNeeds()).needs == NO_NEEDS
    assert not wire.spec_message(job_spec()).HasField("needs")


@pytest.mark.parametrize(
    ("needs", "field"),
    [
        ({"gpu": "a 100"}, "specs[0].needs.gpu"),
        ({"gpu": "4"}, "specs[0].needs.gpu"),
        ({"constraint": "a&b|c"}, "specs[0].needs.constraint"),
        ({"pool": "a b"}, "specs[0].needs.pool"),
        ({"excluded_nodes": ["n1", ""]}, "specs[0].needs.excluded_nodes[1]"),
        ({"gpu_memory_mib": -1}, "specs[0].needs.gpu_memory_mib"),
        ({"gpus": 1025}, "specs[0].needs.gpus"),
        ({"cores": 1 << 40}, "specs[0].needs.cores"),
        ({"memory_mib": (1 << 63) - 1}, "specs[0].needs.memory_mib"),
    ],
)
def test_an_error_names_the_field(needs: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        checked(needs=resources_pb2.NodeNeeds(**needs))
    assert error.value.field == field


def test_members_of_a_fleet_need_the_same() -> None:
    fleet = fleet_pb2.FleetSpec(name="fleet", max_nodes=2, gpus_per_node=2, samples_per_epoch=10.0)
    members = [
        spec_message(name=name, needs=MESSAGE, fleet=fleet, max_nodes=2, slots_per_node=1, target_samples=10)
        for name in "ab"
    ]
    assert [spec.needs for spec in check_specs(members, os.defpath)] == [NEEDS, NEEDS]
    members[1].ClearField("needs")
    with pytest.raises(InvalidInputError, match=r"the same as specs\[0\].needs") as error:
        check_specs(members, os.defpath)
    assert error.value.field == "specs[1].needs"


def test_everybody_sees_them() -> None:
    shown = visible_to(
        Identity("bob", Role.USER, "t1", 0.0, 1.0), wire.job_message(job(1, spec=job_spec(needs=NEEDS), owner="ann"))
    )
    assert shown.spec.needs == MESSAGE
    assert not shown.spec.command
