"""The build refuses an rpc that does not say which role its callers need."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from malletrain.v1 import access_pb2

HOOK = Path(__file__).parents[2] / "hatch_build.py"
PROTO = """
syntax = "proto3";
package malletrain.v1;
import "malletrain/v1/access.proto";
message Nothing {}
service NewService {
  rpc Declared(Nothing) returns (Nothing) { option (malletrain.v1.required_role) = ROLE_VIEWER; }
  rpc Forgotten(Nothing) returns (stream Nothing);
  rpc Unspecified(Nothing) returns (Nothing) { option (malletrain.v1.required_role) = ROLE_UNSPECIFIED; }
  rpc Deprecated(Nothing) returns (Nothing) { option deprecated = true; }
}
"""


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The build hook, for a copy of the protos."""
    spec = importlib.util.spec_from_file_location("hatch_build", HOOK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    copy = tmp_path / "malletrain/v1"
    copy.mkdir(parents=True)
    for proto in (HOOK.parent / "protos/malletrain/v1").glob("*.proto"):
        (copy / proto.name).write_text(proto.read_text())
    monkeypatch.setattr(module, "PROTOS", tmp_path)
    return module


def test_the_protos_as_they_are_can_be_built(build: ModuleType) -> None:
    build.generate()


def test_an_rpc_without_a_role_ends_the_build_and_is_named(build: ModuleType) -> None:
    (build.PROTOS / "malletrain/v1/new.proto").write_text(PROTO)
    with pytest.raises(RuntimeError, match="required_role") as caught:
        build.generate()
    named = str(caught.value)
    for method in ("Forgotten", "Unspecified", "Deprecated"):
        assert f"malletrain.v1.NewService/{method}" in named
    assert "Declared" not in named


def test_the_number_of_the_option_is_that_of_the_proto(build: ModuleType) -> None:
    assert access_pb2.required_role.number == build.REQUIRED_ROLE
    assert build.methods_without_role(FileDescriptorSet().SerializeToString()) == []
