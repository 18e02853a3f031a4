"""Arrays in JobManager: checked at submission, so many admitted at once, stored, and shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from malletrain.job_manager.machine.jobs import ArraySpec, JobSpec
from malletrain.job_manager.machine.state import ManagerPolicy
from malletrain.job_manager.machine.stimuli import Cancelled
from malletrain.job_manager.storage.store import decode, encode
from malletrain.job_manager.submission import check_specs
from malletrain.job_manager.visibility import visible_to
from malletrain.job_manager.wire import job_message
from malletrain.model.job_state import JobState
from malletrain.runtime.access.identity import Identity, Role
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import resources_pb2
from tests.job_manager.harness import MachineHarness
from tests.support.builders import job_spec

PATH = "/usr/bin:/bin"


def members(count: int, most: int, **changes: Any) -> tuple[JobSpec, ...]:
    array = ArraySpec(most)
    return tuple(job_spec(array=array, array_parameters={"n": str(n)}, **changes) for n in range(count))


def admitted(machine: MachineHarness) -> list[int]:
    return [job.number for job in machine.state.jobs.values() if job.admitted]


def test_so_many_jobs_of_an_array_are_admitted_at_once() -> None:
    machine = MachineHarness(ManagerPolicy(max_parallel=10))
    machine.submit(*members(5, 2))
    machine.submit(job_spec())
    assert admitted(machine) == [1, 2, 6]
    assert [machine.job(f"j{number:06d}").array_id for number in (1, 5, 6)] == ["a000001", "a000001", ""]
    assert machine.job("j000003").reason == "waits for one of 10 places, of which its array may have 2"
    machine(Cancelled("j000001"))
    assert machine.job("j000001").state is JobState.CANCELLED
    assert admitted(machine) == [2, 3, 6]
    machine(Cancelled("j000004"))
    machine(Cancelled("j000003"))
    assert admitted(machine) == [2, 5, 6]


def test_an_array_leaves_the_other_places_to_others_in_any_order_of_admission() -> None:
    for policy in (ManagerPolicy(max_parallel=4), ManagerPolicy(max_parallel=4, max_parallel_per_owner=3)):
        machine = MachineHarness(policy)
        machine.submit(*members(5, 1), owner="ada")
        machine.submit(*members(5, 0), owner="ben")
        assert admitted(machine)[:1] == [1]
        assert len(admitted(machine)) == 4
        assert all(number > 5 for number in admitted(machine)[1:])


def test_an_array_is_stored_and_jobs_of_earlier_versions_are_members_of_none() -> None:
    machine = MachineHarness()
    machine.submit(*members(2, 1))
    machine.submit(job_spec())
    body = encode(machine.job("j000002"))
    assert decode(body) == machine.job("j000002")
    body = encode(machine.job("j000003"))
    earlier = (
        body.replace(',"array":null', "").replace(',"array_number":null', "").replace(',"array_parameters":{}', "")
    )
    assert len(earlier) < len(body)
    assert decode(earlier) == machine.job("j000003")


def test_others_see_the_array_and_not_its_parameters() -> None:
    machine = MachineHarness()
    machine.submit(*members(2, 1), owner="ada")
    message = job_message(machine.job("j000002"))
    assert (message.array_id, message.spec.array.max_admitted) == ("a000001", 1)
    assert dict(message.spec.array_parameters) == {"n": "1"}
    shown = visible_to(Identity("ben", Role.USER, "t", 0.0, 1.0), message)
    assert (shown.array_id, shown.spec.array.max_admitted, len(shown.spec.array_parameters)) == ("a000001", 1, 0)


def spec(tmp_path: Path, most: int | None = 2, **parameters: str) -> resources_pb2.JobSpec:
    found = resources_pb2.JobSpec(
        name="a",
        command=["true"],
        working_directory=str(tmp_path),
        min_nodes=1,
        max_nodes=1,
        array_parameters=parameters,
    )
    if most is not None:
        found.array.max_admitted = most
        found.array.SetInParent()
    return found


def test_a_submission_of_an_array(tmp_path: Path) -> None:
    first, second = check_specs([spec(tmp_path, lr="0.1"), spec(tmp_path, lr="0.01")], PATH)
    assert first.array == second.array == ArraySpec(2)
    assert (first.array_parameters, second.array_parameters) == ({"lr": "0.1"}, {"lr": "0.01"})
    (alone,) = check_specs([spec(tmp_path, None)], PATH)
    assert alone.array is None


def test_what_makes_no_sense_is_refused_by_its_field(tmp_path: Path) -> None:
    fleet = spec(tmp_path)
    fleet.fleet.SetInParent()
    many = {f"p{number}": "1" for number in range(33)}
    wrong = [
        ([spec(tmp_path, 1), spec(tmp_path, 2)], "specs[1].array"),
        ([spec(tmp_path, 1), spec(tmp_path, None)], "specs[1].array"),
        ([spec(tmp_path, -1)], "specs[0].array.max_admitted"),
        ([spec(tmp_path, 1_000_001)], "specs[0].array.max_admitted"),
        ([spec(tmp_path, None, lr="1")], "specs[0].array_parameters"),
        ([spec(tmp_path, 1, **{"l r": "1"})], "specs[0].array_parameters"),
        ([spec(tmp_path, 1, lr="\x1b")], "specs[0].array_parameters.lr"),
        ([spec(tmp_path, 1, lr="x" * 257)], "specs[0].array_parameters.lr"),
        ([spec(tmp_path, 1, **many)], "specs[0].array_parameters"),
    ]
    for specs, field in wrong:
        with pytest.raises(InvalidInputError) as caught:
            check_specs(specs, PATH)
        assert caught.value.field == field
