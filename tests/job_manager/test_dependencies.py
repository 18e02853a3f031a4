"""Jobs that wait for others: in the machine over restarts, checked at submission, stored, and shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from malletrain.job_manager.dependencies import MAX_DEPENDENCIES, MAX_NAMES, check_named
from malletrain.job_manager.machine.jobs import ArraySpec, Dependencies, Job, JobSpec
from malletrain.job_manager.machine.state import ManagerPolicy
from malletrain.job_manager.machine.stimuli import Cancelled, Completion, PlanReceived
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.job_manager.storage.store import decode, encode
from malletrain.job_manager.submission import check_specs
from malletrain.job_manager.visibility import visible_to
from malletrain.job_manager.wire import job_message
from malletrain.model.job_state import JobState
from malletrain.runtime.access.identity import Identity, Role
from malletrain.runtime.errors import InvalidInputError, StalePlanError
from malletrain.v1 import resources_pb2
from tests.job_manager.harness import MachineHarness
from tests.job_manager.test_invariants import JobManagerMachine
from tests.support.builders import job_spec

PATH = "/usr/bin:/bin"


def after(*names: str, **changes: Any) -> JobSpec:
    return job_spec(dependencies=Dependencies(after=names), **changes)


def after_ok(*names: str, **changes: Any) -> JobSpec:
    return job_spec(dependencies=Dependencies(after_ok=names), **changes)


def complete(machine: MachineHarness, job_id: str) -> None:
    number = int(job_id[1:])
    machine.plan(**{f"j{number}": f"n{number}"})
    machine.end(job_id, completion=Completion())
    assert machine.job(job_id).state is JobState.COMPLETED


def with_nodes() -> MachineHarness:
    machine = MachineHarness()
    machine.idle(*(f"n{number}" for number in range(1, 9)))
    return machine


def test_a_job_waits_until_the_others_have_ended() -> None:
    machine = with_nodes()
    machine.submit(job_spec(), job_spec())
    machine.submit(after("j000001", "j000002"))
    machine.submit(job_spec())
    waiting = machine.job("j000003")
    assert (waiting.state, waiting.reason_code) == (JobState.QUEUED, JobReason.DEPENDENCY)
    assert waiting.reason == "waits for j000001, j000002 to end"
    assert machine.job("j000004").admitted, "others are not held up"
    machine(Cancelled("j000001"))
    assert machine.job("j000003").reason == "waits for j000002 to end"
    assert not machine.job("j000003").admitted
    complete(machine, "j000002")
    assert machine.job("j000003").admitted
    assert machine.job("j000003").waits_for == ()


def test_no_plan_gives_nodes_to_a_job_that_waits() -> None:
    machine = with_nodes()
    machine.submit(job_spec())
    machine.submit(after("j000001"))
    with pytest.raises(StalePlanError):
        machine(PlanReceived(1, (("j000002", ("n1",)),)))


def test_after_ok_waits_for_completion_and_a_failure_cancels_all_that_depend_on_it() -> None:
    machine = with_nodes()
    machine.submit(job_spec(), job_spec(max_restarts=0))
    machine.submit(after_ok("j000001"))
    machine.submit(after_ok("j000002", "j000001"))
    machine.submit(after_ok("j000004"))
    machine.submit(after("j000004"))
    assert machine.job("j000004").reason == "waits for j000002, j000001 to complete"
    complete(machine, "j000001")
    assert machine.job("j000003").admitted
    machine.plan(j2="n2")
    machine.end("j000002")
    fourth, fifth = machine.job("j000004"), machine.job("j000005")
    assert (fourth.state, fourth.reason_code) == (JobState.CANCELLED, JobReason.DEPENDENCY)
    assert fourth.reason == (
        "cancelled: j000002 ended FAILED, and this job was to start once j000002 is COMPLETED (after-ok)"
    )
    assert fifth.reason == (
        "cancelled: j000004 ended CANCELLED, and this job was to start once j000004 is COMPLETED (after-ok)"
    )
    assert machine.job("j000006").admitted, "it was to wait for the end only"


def test_both_kinds_stand_in_the_reason_and_many_are_counted() -> None:
    machine = with_nodes()
    machine.submit(*(job_spec() for _ in range(6)))
    machine.submit(job_spec(dependencies=Dependencies(("j000001",), tuple(f"j{n:06d}" for n in range(2, 7)))))
    assert machine.job("j000007").reason == (
        "waits for j000001 to end, and for j000002, j000003, j000004 and 2 more to complete"
    )


def test_all_jobs_of_an_array_are_waited_for_and_arrays_wait_as_their_jobs() -> None:
    machine = with_nodes()
    machine.submit(*(job_spec(array=ArraySpec(), array_parameters={"n": str(n)}) for n in range(3)))
    machine.submit(*(after_ok("a000001", array=ArraySpec(1)) for _ in range(3)))
    assert machine.job("j000005").reason == "waits for a000001 to complete"
    complete(machine, "j000001")
    complete(machine, "j000003")
    assert not machine.job("j000004").admitted
    complete(machine, "j000002")
    assert [machine.job(f"j00000{number}").admitted for number in (4, 5, 6)] == [True, False, False]
    assert machine.job("j000005").reason == "waits for one of 10 places, of which its array may have 1"


def test_one_failed_job_of_an_array_is_enough() -> None:
    machine = with_nodes()
    machine.submit(*(job_spec(array=ArraySpec(), array_parameters={"n": str(n)}) for n in range(3)))
    machine.submit(after_ok("a000001"))
    machine(Cancelled("j000002"))
    assert machine.job("j000004").reason == (
        "cancelled: j000002 of a000001 ended CANCELLED, and this job was to start once a000001 is COMPLETED (after-ok)"
    )


def test_a_job_that_waits_can_be_cancelled_and_so_can_what_it_waits_for() -> None:
    machine = with_nodes()
    machine.submit(job_spec())
    machine.submit(after("j000001"))
    machine.submit(after("j000002"))
    machine(Cancelled("j000002"))
    assert machine.job("j000002").reason == "cancelled by its owner"
    assert machine.job("j000002").waits_for == ()
    assert machine.job("j000003").admitted


def test_a_job_that_has_waited_takes_its_place_in_the_queue() -> None:
    machine = MachineHarness(ManagerPolicy(max_parallel=1))
    machine.submit(job_spec())
    machine.submit(after("j000001"))
    machine.submit(job_spec())
    machine(Cancelled("j000001"))
    assert [machine.job(name).admitted for name in ("j000002", "j000003")] == [True, False]


def test_what_is_waited_for_is_stored_and_jobs_of_earlier_versions_wait_for_none() -> None:
    machine = with_nodes()
    machine.submit(job_spec())
    machine.submit(after_ok("j000001"))
    body = encode(machine.job("j000002"))
    assert decode(body) == machine.job("j000002")
    body = encode(machine.job("j000001"))
    earlier = body.replace(',"dependencies":{"after":[],"after_ok":[]}', "").replace(',"waits_for":[]', "")
    assert len(earlier) < len(body)
    assert decode(earlier) == machine.job("j000001")


def test_everybody_sees_what_a_job_waits_for() -> None:
    machine = with_nodes()
    machine.submit(job_spec(), owner="ada")
    machine.submit(after_ok("j000001"), owner="ada")
    message = job_message(machine.job("j000002"))
    assert list(message.spec.dependencies.after_ok) == ["j000001"]
    assert not job_message(machine.job("j000001")).spec.HasField("dependencies")
    shown = visible_to(Identity("ben", Role.USER, "t", 0.0, 1.0), message)
    assert list(shown.spec.dependencies.after_ok) == ["j000001"]
    assert shown.reason_code == resources_pb2.JOB_REASON_DEPENDENCY


class DependentsMachine(JobManagerMachine):
    """Jobs wait for others, whatever happens to these. What was admitted is compared with how the others ended."""

    policy = ManagerPolicy(max_parallel=3)

    @rule(data=st.data(), ok=st.booleans(), size=st.integers(0, 3))
    def submit_dependent(self, data: st.DataObject, ok: bool, size: int) -> None:
        machine = self.machine
        known = [job for job in (*machine.state.jobs.values(), *machine.ended.values()) if not ok or not is_broken(job)]
        spoilt = {job.array_id for job in machine.ended.values() if ok and is_broken(job)}
        names = sorted({name for job in known for name in (job.id, job.array_id) if name and name not in spoilt})
        if not names:
            return
        chosen = tuple(data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)))
        spec = after_ok(*chosen) if ok else after(*chosen)
        machine.submit(*([replace(spec, array=ArraySpec(size % 3))] * size or [spec]))

    @rule(data=st.data())
    def one_completes(self, data: st.DataObject) -> None:
        if job := self.draw(data):
            self.machine.end(job.id, completion=Completion())

    def named(self, name: str) -> list[Job]:
        jobs = (*self.machine.state.jobs.values(), *self.machine.ended.values())
        return [job for job in jobs if name in (job.id, job.array_id)]

    @invariant()
    def none_is_overtaken(self) -> None:
        for job in (*self.machine.state.jobs.values(), *self.machine.ended.values()):
            needs = job.spec.dependencies
            has_begun = job.admitted or (job.state.final and job.state is not JobState.CANCELLED)
            ended = all(other.state.final for name in needs.names for other in self.named(name))
            complete = all(other.state is JobState.COMPLETED for name in needs.after_ok for other in self.named(name))
            if has_begun:
                assert ended
                assert complete
            elif job.state is JobState.QUEUED:
                assert not any(is_broken(other) for name in needs.after_ok for other in self.named(name))
                assert bool(job.waits_for) == (not (ended and complete))
                assert (job.reason_code is JobReason.DEPENDENCY) == bool(job.waits_for)


def is_broken(job: Job) -> bool:
    return job.state.final and job.state is not JobState.COMPLETED


TestDependentsMachine = DependentsMachine.TestCase
TestDependentsMachine.settings = settings(max_examples=70, stateful_step_count=40, deadline=None)


def spec(tmp_path: Path, *names: str, ok: Sequence[str] = ()) -> resources_pb2.JobSpec:
    return resources_pb2.JobSpec(
        name="a",
        command=["true"],
        working_directory=str(tmp_path),
        min_nodes=1,
        max_nodes=1,
        dependencies=resources_pb2.Dependencies(after=names, after_ok=ok),
    )


def test_the_form_is_checked_at_submission(tmp_path: Path) -> None:
    (found,) = check_specs([spec(tmp_path, "j000001", ok=["a000002"])], PATH)
    assert found.dependencies == Dependencies(("j000001",), ("a000002",))
    fleet = spec(tmp_path, "j000001")
    fleet.fleet.name, fleet.fleet.max_nodes, fleet.fleet.samples_per_epoch = "f", 1, 1
    wrong = [
        (spec(tmp_path, "resnet"), "specs[0].dependencies.after[0]"),
        (spec(tmp_path, "f000001"), "specs[0].dependencies.after[0]"),
        (spec(tmp_path, ok=["j000001", "j1"]), "specs[0].dependencies.after_ok[1]"),
        (spec(tmp_path, "j000001", ok=["j000001"]), "specs[0].dependencies.after_ok[0]"),
        (spec(tmp_path, *(f"j{n:06d}" for n in range(MAX_DEPENDENCIES + 1))), "specs[0].dependencies"),
        (fleet, "specs[0].dependencies"),
    ]
    for bad, field in wrong:
        with pytest.raises(InvalidInputError) as caught:
            check_specs([bad], PATH)
        assert caught.value.field == field


def submitted(*specs: JobSpec, jobs: Sequence[Job]) -> frozenset[str]:
    by_number = {job.number: job for job in jobs}
    return check_named(specs, "ada", by_number.get, lambda first: [job for job in jobs if job.number >= first])


def test_the_jobs_named_are_checked_at_submission() -> None:
    machine = with_nodes()
    machine.submit(job_spec(), job_spec(), owner="ada")
    machine.submit(*(job_spec(array=ArraySpec()) for _ in range(2)), owner="ada")
    machine.submit(job_spec(), owner="ben")
    machine(Cancelled("j000001"))
    machine(Cancelled("j000003"))
    jobs = sorted((*machine.state.jobs.values(), *machine.ended.values()), key=lambda job: job.number)
    assert submitted(after("j000001", "j000002"), jobs=jobs) == {"j000002"}
    assert submitted(after("a000003"), after_ok("j000004"), jobs=jobs) == {"j000004"}
    wrong = [
        (after("j000006"), "specs[1].dependencies.after[0]", "submitted before"),
        (after("j0000002"), "specs[1].dependencies.after[0]", "submitted before"),
        (after("a000002"), "specs[1].dependencies.after[0]", "submitted before"),
        (after("j000002", "j000005"), "specs[1].dependencies.after[1]", "j000005 is ben's"),
        (after_ok("j000001"), "specs[1].dependencies.after_ok[0]", "j000001 is CANCELLED"),
        (after_ok("a000003"), "specs[1].dependencies.after_ok[0]", "j000003 is CANCELLED"),
    ]
    for bad, field, words in wrong:
        with pytest.raises(InvalidInputError, match=words) as caught:
            submitted(job_spec(), bad, jobs=jobs)
        assert caught.value.field == field


def test_so_many_names_of_one_submission_are_looked_up() -> None:
    names = [f"j{number:06d}" for number in range(1, MAX_NAMES + 2)]
    machine = MachineHarness()
    machine.submit(*(job_spec() for _ in names), owner="ada")
    jobs = list(machine.state.jobs.values())
    assert len(submitted(*map(after, names[:-1]), *map(after_ok, names[:-1]), jobs=jobs)) == MAX_NAMES
    with pytest.raises(InvalidInputError, match=f"at most {MAX_NAMES} different"):
        submitted(*map(after, names), jobs=jobs)
