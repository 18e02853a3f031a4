"""Who sees what of a job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.job_manager.machine.state import JobEvent
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.job_manager.storage.store import StoredEvent
from malletrain.job_manager.visibility import PUBLIC_JOB_FIELDS, PUBLIC_SPEC_FIELDS, event_visible_to, visible_to
from malletrain.job_manager.wire import event_message, job_message
from malletrain.model.job_state import JobState
from malletrain.runtime.access.identity import Identity, PermissionDeniedError, Role, owns, require_owner
from malletrain.v1 import resources_pb2
from tests.job_manager.harness import running
from tests.support.builders import job_spec

PRIVATE_JOB_FIELDS = {"reason", "metrics", "save_error", "last_failure"}
PRIVATE_SPEC_FIELDS = {
    *("command", "working_directory", "environment", "family", "launch_note", "project", "array_parameters"),
}
USERS = st.sampled_from(["ada", "bob", "j000001", "job_manager"])


def caller(user: str, role: Role) -> Identity:
    return Identity(user, role, "t1", 0.0, 1.0, "j000001" if role is Role.JOB else "")


def whole(owner: str = "ada") -> resources_pb2.Job:
    """A job of which every field has a value, private ones that are easy to find."""
    job = running(
        "a b", job_spec(environment={"HOME": "private"}, family="private", project="private", weight=2.0)
    ).job()
    message = job_message(job)
    message.owner = owner
    message.reason = "private: the last lines of a log"
    message.save_error = "private"
    message.metrics["private"] = 0.5
    message.spec.working_directory = "/private"
    message.spec.command[:] = ["private", "--lr", "0.1"]
    return message


def test_each_field_is_either_public_or_private() -> None:
    assert {field.name for field in resources_pb2.Job.DESCRIPTOR.fields} == PUBLIC_JOB_FIELDS | PRIVATE_JOB_FIELDS
    assert {field.name for field in resources_pb2.JobSpec.DESCRIPTOR.fields} == PUBLIC_SPEC_FIELDS | PRIVATE_SPEC_FIELDS
    assert not PUBLIC_JOB_FIELDS & PRIVATE_JOB_FIELDS
    assert not PUBLIC_SPEC_FIELDS & PRIVATE_SPEC_FIELDS


@pytest.mark.parametrize(
    ("user", "role", "expected"),
    [
        ("ada", Role.USER, True),
        ("ada", Role.VIEWER, True),
        ("ada", Role.OPERATOR, True),
        ("bob", Role.USER, False),
        ("bob", Role.VIEWER, False),
        ("bob", Role.OPERATOR, True),
        ("allocator", Role.SERVICE, True),
        ("ada", Role.JOB, False),
        ("ada", Role.ANYBODY, False),
    ],
)
def test_the_owner_operators_and_services_have_the_rights_of_the_owner(user: str, role: Role, expected: bool) -> None:
    assert owns(caller(user, role), "ada") is expected
    assert (visible_to(caller(user, role), whole()) == whole()) is expected
    if expected:
        require_owner(caller(user, role), "ada", "j000001", "cancel it")
    else:
        with pytest.raises(PermissionDeniedError, match="job j000001 belongs to ada: only its owner and operators may"):
            require_owner(caller(user, role), "ada", "j000001", "cancel it")


@given(USERS, st.sampled_from(Role), st.sampled_from(["ada", "bob", ""]))
def test_others_see_what_is_public_and_nothing_else(user: str, role: Role, owner: str) -> None:
    job = whole(owner)
    shown = visible_to(caller(user, role), job)
    assert job == whole(owner), "the message itself is left as it is"
    if owns(caller(user, role), owner):
        assert shown == job
        return
    assert b"private" not in shown.SerializeToString()
    for name in PUBLIC_JOB_FIELDS - {"spec"}:
        assert getattr(shown, name) == getattr(job, name)
    for name in PUBLIC_SPEC_FIELDS:
        assert getattr(shown.spec, name) == getattr(job.spec, name)


def test_a_job_without_an_owner_is_nobodys() -> None:
    assert not owns(caller("", Role.ANYBODY), "")
    assert not owns(caller("ada", Role.USER), "")


@pytest.mark.parametrize(("user", "prose"), [("ada", "exit status 1: secret"), ("bob", "")])
def test_others_get_rows_of_the_journal_without_prose(user: str, prose: str) -> None:
    row = JobEvent(
        5.0, "j000001", JobState.RUNNING, JobState.FAILED, JobReason.WORKER_FAILED, "exit status 1: secret", ("a",)
    )
    event = event_message(StoredEvent(7, row))
    shown = event_visible_to(caller(user, Role.USER), event, "ada")
    assert shown.reason == prose
    assert event.reason == "exit status 1: secret"
    shown.reason = event.reason
    assert shown == event
