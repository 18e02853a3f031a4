"""Tables for people, and JSON for scripts."""

from __future__ import annotations

import json
import re

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from malletrain.cli.main import json_form_chosen
from malletrain.cli.shared.output import JsonForm, choose_json_form, print_table, to_dict
from malletrain.v1 import allocator_pb2, resources_pb2
from tests.support.builders import job_message

LONG = "worker on n1: exit status 1; restarted 3 times before; the last lines of its log:\nn1 | ValueError: [lr] is NaN"


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [re.sub("\x1b\\[[0-9;]*m", "", line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.usefixtures("terminal")
def test_a_reason_of_several_lines_takes_one(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("job", "reason"), [("j000001", LONG), ("j000002", "x" * 400)], one_line=True)
    lines = printed(capsys)
    assert len(lines) == 3, "a heading, and one line for each job"
    assert max(map(len, lines)) == 80
    assert "ValueError" not in "".join(lines)
    assert lines[1].endswith("before; the last lines…")
    assert lines[2].endswith("xxx…")


@pytest.mark.usefixtures("terminal")
def test_elsewhere_nothing_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("job", "reason"), [("j000001", LONG)])
    lines = printed(capsys)
    assert max(map(len, lines)) <= 80
    assert "n1 | ValueError: [lr] is NaN" in lines[-1]


def test_what_goes_into_a_pipe_is_whole_and_has_no_padding(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("job", "reason"), [("j000001", LONG), ("j000002", "x" * 400)], one_line=True)
    assert printed(capsys) == ["job\treason", f"j000001\t{LONG.splitlines()[0]}", "j000002\t" + "x" * 400]


def test_json_has_numbers_for_numbers_and_states_as_the_command_writes_them() -> None:
    job = job_message(state=resources_pb2.JOB_STATE_RUNNING, samples=2**53, create_time=Timestamp(seconds=1))
    found = to_dict(job)
    assert (found["samples"], found["state"], found["createTime"]) == (2**53, "RUNNING", "1970-01-01T00:00:01Z")
    assert found["reasonCode"] == "UNSPECIFIED"
    plan = allocator_pb2.Plan(generation=7, problem=allocator_pb2.AllocationProblem(owner_limits={"ada": 3}))
    assert (to_dict(plan)["generation"], to_dict(plan)["problem"]["ownerLimits"]) == (7, {"ada": 3})
    assert json.loads(json.dumps(found)) == found


def test_the_former_form_is_there_for_one_version() -> None:
    job = job_message(state=resources_pb2.JOB_STATE_RUNNING, samples=5)
    choose_json_form(JsonForm.PROTO)
    try:
        assert (to_dict(job)["samples"], to_dict(job)["state"]) == ("5", "JOB_STATE_RUNNING")
    finally:
        choose_json_form(JsonForm.PLAIN)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["jobs", "--json"], (["jobs", "--json"], False)),
        (["jobs", "--json=proto"], (["jobs", "--json"], True)),
        (["submit", "--", "tool", "--json=proto"], (["submit", "--", "tool", "--json=proto"], False)),
        ([], ([], False)),
    ],
)
def test_json_proto_is_read_before_the_command_of_a_job(words: list[str], expected: tuple[list[str], bool]) -> None:
    assert json_form_chosen(words) == expected
