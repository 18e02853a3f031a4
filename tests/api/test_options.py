"""Options of jobs as keyword arguments: the same as those of the command, and checked by their names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import grpc
import pytest

from malletrain.api.errors import (
    InvalidInputError,
    LimitExceededError,
    NotFoundError,
    PermissionDeniedError,
    ServiceCallError,
    UnavailableError,
    as_exception,
    in_python,
)
from malletrain.api.job import Job, JobList
from malletrain.api.options import JobOptions, spec_of
from malletrain.caller.option_values import NAMES
from malletrain.v1 import resources_pb2

if TYPE_CHECKING:
    from malletrain.api.connection import Connection

COMMAND = ["python", "train.py"]


def test_the_typed_options_are_those_of_a_request() -> None:
    assert set(JobOptions.__annotations__) == set(NAMES)


def test_options_become_a_specification(tmp_path: Path) -> None:
    spec = spec_of(
        COMMAND,
        {
            "name": "resnet",
            "min_nodes": 2,
            "max_nodes": 4,
            "permitted": [2, 4],
            "curve": {1: 100, 2: 190.5},
            "backend": "torchrun",
            "env": {"SEED": "1"},
            "workdir": tmp_path,
            "gpu_memory": "40G",
            "exclude": ["n07"],
            "burst_buffer": "2TB",
            "max_restarts": 0,
            "scale_up": None,
            "topology": "prefer",
        },
    )
    assert (spec.name, spec.min_nodes, spec.max_nodes, list(spec.permitted_nodes)) == ("resnet", 2, 4, [2, 4])
    assert [(point.nodes, point.rate) for point in spec.curve] == [(1, 100.0), (2, 190.5)]
    assert spec.backend == resources_pb2.LAUNCHER_BACKEND_TORCHRUN
    assert (dict(spec.environment), spec.working_directory) == ({"SEED": "1"}, str(tmp_path))
    assert (spec.needs.gpu_memory_mib, list(spec.needs.excluded_nodes), spec.burst_buffer_gb) == (40960, ["n07"], 2000)
    assert spec.HasField("max_restarts")
    assert not spec.HasField("scale_up_seconds")


@pytest.mark.parametrize(
    ("options", "field", "expected"),
    [
        ({"min_nodse": 2}, "min_nodse", "do you mean min_nodes"),
        ({"zzz": 2}, "zzz", "one of name, min_nodes"),
        ({"min_nodes": "2"}, "min_nodes", "a whole number"),
        ({"min_nodes": True}, "min_nodes", "a whole number"),
        ({"min_nodes": 1 << 40}, "min_nodes", "a whole number"),
        ({"min_nodes": None}, "min_nodes", "a whole number"),
        ({"weight": "1"}, "weight", "a finite number"),
        ({"weight": float("nan")}, "weight", "a finite number"),
        ({"name": 3}, "name", "a text"),
        ({"cold": 1}, "cold", "True or False"),
        ({"permitted": "1,2"}, "permitted", "a list of whole numbers"),
        ({"permitted": [1, "2"]}, "permitted[1]", "a whole number"),
        ({"exclude": "n07"}, "exclude", "a list of texts"),
        ({"env": {"SEED": 1}}, "env['SEED']", "a text"),
        ({"env": ["SEED"]}, "env", "a dictionary"),
        ({"curve": [(1, 2)]}, "curve", "a dictionary"),
        ({"workdir": 3}, "workdir", "a path"),
        ({"backend": "mpi"}, "backend", "one of horovod"),
        ({"gpu_memory": "40X"}, "gpu_memory", "a size such as 40G"),
        ({"gpus": 0}, "gpus", "a whole number from 1"),
        ({"profile": "often"}, "profile", "auto, always or never"),
        ({"topology": "near"}, "topology", "prefer"),
        ({"topology": "prefer=1"}, "topology", "require-replica=LEVEL"),
        ({"topology": "require-replica=9"}, "topology", "a level of 1 to 8"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(options: dict[str, Any], field: str, expected: str) -> None:
    with pytest.raises(InvalidInputError, match=expected) as caught:
        spec_of(COMMAND, options)
    assert caught.value.field == field


@pytest.mark.parametrize("command", ["python train.py", [], [3]])
def test_a_command_is_a_list_of_texts(command: Any) -> None:
    with pytest.raises(InvalidInputError) as caught:
        spec_of(command, {})
    assert caught.value.field.startswith("command")


def test_values_of_variables_are_not_quoted() -> None:
    with pytest.raises(InvalidInputError) as caught:
        spec_of(COMMAND, {"env": {"TOKEN": b"very-secret"}})
    assert "very-secret" not in str(caught.value)


class Refusal(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.NOT_FOUND, NotFoundError),
        (grpc.StatusCode.UNAVAILABLE, UnavailableError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, UnavailableError),
        (grpc.StatusCode.PERMISSION_DENIED, PermissionDeniedError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, LimitExceededError),
        (grpc.StatusCode.INTERNAL, ServiceCallError),
    ],
)
def test_errors_of_calls_have_a_kind(code: grpc.StatusCode, kind: type[Exception]) -> None:
    assert type(as_exception(Refusal(code, "why"))) is kind


@pytest.mark.parametrize(
    ("details", "field"),
    [
        ("specs[0].min_nodes: expected at least 1, got 0", "min_nodes"),
        ("specs[0].environment.SEED: expected no zero bytes", "env.SEED"),
        ("specs[3].working_directory: expected a directory: got none", "workdir"),
        ("request_id: expected at most 256 characters", "request_id"),
    ],
)
def test_a_refused_input_names_the_argument(details: str, field: str) -> None:
    error = as_exception(Refusal(grpc.StatusCode.INVALID_ARGUMENT, details))
    assert isinstance(error, InvalidInputError)
    assert error.field == field
    assert error.expected in details


def test_jobs_that_are_waited_for_may_be_jobs() -> None:
    first, second = (Job(cast("Connection", None), resources_pb2.Job(id=f"j00000{number}")) for number in (1, 2))
    found = JobList(cast("Connection", None), [first, second])
    for after, names in ((first, ["j000001"]), ("prepare", ["prepare"]), (found, ["j000001", "j000002"])):
        spec = spec_of(COMMAND, {"after": after, "after_ok": [second, "a000003"], "backend": "command"})
        assert list(spec.dependencies.after) == names
        assert list(spec.dependencies.after_ok) == ["j000002", "a000003"]
    with pytest.raises(InvalidInputError, match=r"after\[0\]: expected a text"):
        spec_of(COMMAND, {"after": [12]})
    with pytest.raises(InvalidInputError, match="after_ok: expected a list of texts"):
        spec_of(COMMAND, {"after_ok": 12})
    assert in_python(InvalidInputError("dependencies.after[0]", "a job")).field == "after[0]"
