"""Which job a name means."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from malletrain.caller.dependencies import dependencies_in_words, name_identifiers, parse_names
from malletrain.caller.job_request import JobRequest, job_spec
from malletrain.cli.jobs.jobs import complete_state, of_array
from malletrain.cli.jobs.naming import dependency_of, job_of, jobs_meant, own_job_of, unfinished_job_of
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.runtime.errors import InvalidInputError, NotFoundError
from malletrain.v1 import access_pb2, job_manager_pb2, resources_pb2
from tests.support.builders import job_message

RUNNING, DONE = resources_pb2.JOB_STATE_RUNNING, resources_pb2.JOB_STATE_COMPLETED


@dataclass
class Jobs:
    """JobManager as ada sees it. One of an earlier version takes no notice of a request's name."""

    jobs: list[resources_pb2.Job]
    knows_names: bool = True
    requests: list[job_manager_pb2.ListJobsRequest] = field(default_factory=list)

    def ListJobs(self, request: job_manager_pb2.ListJobsRequest, **_: Any) -> job_manager_pb2.ListJobsResponse:
        self.requests.append(request)
        named = [job for job in self.jobs if not (self.knows_names and request.name) or job.spec.name == request.name]
        return job_manager_pb2.ListJobsResponse(
            jobs=[job for job in named if not request.owner or job.owner == request.owner]
        )

    def GetIdentity(self, request: access_pb2.GetIdentityRequest, **_: Any) -> access_pb2.GetIdentityResponse:
        del request
        return access_pb2.GetIdentityResponse(identity=access_pb2.Identity(user="ada"))


def stubs(*jobs: tuple[str, str, str, int], knows_names: bool = True) -> tuple[ServiceStubs, Jobs]:
    found = [job_message(job_id, name=name, owner=owner, state=state) for job_id, name, owner, state in jobs]
    known = Jobs(found, knows_names)
    return cast("ServiceStubs", SimpleNamespace(job_manager=known, access=known)), known


@pytest.mark.parametrize("knows_names", [True, False])
def test_a_name_means_the_newest_job_and_the_others_are_told(
    capsys: pytest.CaptureFixture[str], knows_names: bool
) -> None:
    services, _ = stubs(
        ("j000001", "resnet", "ada", DONE),
        ("j000002", "vit", "ada", RUNNING),
        ("j000003", "resnet", "ada", RUNNING),
        knows_names=knows_names,
    )
    assert job_of(services, "resnet", 0.0) == "j000003"
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[0] == "note: 'resnet' is the newest of 2 jobs of this name: j000003"
    assert "j000001 COMPLETED" in said.err
    assert job_of(services, "vit", 0.0) == "j000002"
    assert capsys.readouterr().err == ""


def test_an_identifier_is_asked_for_nowhere() -> None:
    services, known = stubs()
    assert job_of(services, "j000042", 0.0) == unfinished_job_of(services, "j000042", 0.0) == "j000042"
    assert known.requests == []


def test_a_job_of_somebody_else_takes_no_name_of_ours() -> None:
    services, _ = stubs(("j000001", "resnet", "ada", DONE), ("j000002", "resnet", "eve", RUNNING))
    assert job_of(services, "resnet", 0.0) == own_job_of(services, "resnet") == "j000001"
    others, _ = stubs(("j000002", "resnet", "eve", RUNNING))
    assert job_of(others, "resnet", 0.0) == "j000002"
    assert own_job_of(others, "resnet") is None


def test_a_job_waits_for_the_newest_of_a_name_and_for_all_of_its_array(capsys: pytest.CaptureFixture[str]) -> None:
    services, known = stubs(
        ("j000001", "prepare", "ada", DONE),
        ("j000002", "grid", "ada", DONE),
        ("j000003", "grid", "ada", RUNNING),
        ("j000004", "prepare", "ada", RUNNING),
    )
    for job in known.jobs[1:3]:
        job.array_id = "a000002"
    assert dependency_of(services, "after", "grid", 0.0) == "a000002"
    assert capsys.readouterr().err == ""
    assert dependency_of(services, "after", "prepare", 0.0) == "j000004"
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "note: 'prepare' is taken for j000004, the newest; older jobs of this name:"
    assert "j000001 COMPLETED" in said[1]
    with pytest.raises(InvalidInputError, match="got 'nothing'") as caught:
        dependency_of(services, "after_ok", "nothing", 0.0)
    assert caught.value.field == "--after-ok"


def test_names_become_identifiers_once_each() -> None:
    asked: list[tuple[str, str]] = []

    def identifier(part: str, name: str) -> str:
        asked.append((part, name))
        return "a000002"

    request = JobRequest(command=["true"], after=["grid", "j000001", "same"], after_ok=parse_names("", "grid, a000003"))
    specs = [job_spec(request), job_spec(request), job_spec(JobRequest(command=["true"]))]
    name_identifiers(specs, identifier)
    assert asked == [("after", "grid"), ("after", "same"), ("after_ok", "grid")]
    assert list(specs[1].dependencies.after) == ["a000002", "j000001"]
    assert list(specs[1].dependencies.after_ok) == ["a000002", "a000003"]
    assert not specs[2].HasField("dependencies")
    assert dependencies_in_words(specs[1]) == "the end of a000002, j000001; the completion of a000002, a000003"
    assert dependencies_in_words(specs[2]) == ""
    with pytest.raises(InvalidInputError, match="--after: expected jobs separated by commas"):
        parse_names("--after", "j000001,,j000002")


def test_of_several_that_go_on_none_is_ended_by_its_name() -> None:
    services, _ = stubs(
        ("j000001", "a", "ada", RUNNING), ("j000002", "a", "ada", RUNNING), ("j000003", "b", "ada", RUNNING)
    )
    with pytest.raises(InvalidInputError, match=r"an identifier, since 2 jobs have this name \(j000002 R.*j000001"):
        unfinished_job_of(services, "a", 0.0)
    assert unfinished_job_of(services, "b", 0.0) == "j000003"
    services, _ = stubs(("j000001", "a", "ada", RUNNING), ("j000002", "a", "ada", DONE))
    assert unfinished_job_of(services, "a", 0.0) == "j000001"


def test_names_that_nobody_has() -> None:
    services, _ = stubs(("j000001", "a", "ada", RUNNING))
    with pytest.raises(NotFoundError, match="no job has the identifier or the name 'b'"):
        job_of(services, "b", 0.0)
    with pytest.raises(InvalidInputError, match="ID: expected a job's identifier or its name"):
        job_of(services, " ", 0.0)


def test_states_are_completed() -> None:
    assert complete_state("r") == ["running", "rescaling"]
    assert "unspecified" not in complete_state("")


def test_the_name_of_an_array_means_all_its_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    services, known = stubs(
        ("j000001", "grid", "ada", DONE),
        ("j000002", "grid", "ada", DONE),
        ("j000003", "grid", "ada", RUNNING),
        ("j000004", "vit", "ada", RUNNING),
        ("j000005", "grid", "eve", RUNNING),
    )
    for job, array in zip(known.jobs, ("a000001", "a000002", "a000002", "", "a000005"), strict=True):
        job.array_id = array
    found = jobs_meant(services, ["grid"])
    assert found is not None
    assert [job.id for job in found] == ["j000002", "j000003"]
    assert capsys.readouterr().err == "note: 'grid' is taken for a000002, the newest of this name\n"
    assert jobs_meant(services, ["vit"]) is None
    assert [job.id for job in of_array(services, known.jobs, "grid")] == ["j000002", "j000003"]
    assert [job.id for job in of_array(services, known.jobs, "a000005")] == ["j000005"]
    assert of_array(services, known.jobs, "vit") == []
