"""Build hook: generates the gRPC stubs of `malletrain.v1`, with type stubs, from `protos/`."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
PROTOS = ROOT / "protos"
REQUIRED_ROLE = 50071
"""Number of the option `malletrain.v1.required_role` (access.proto)."""


def generate() -> None:
    """Write `*_pb2.py`, `*_pb2_grpc.py` and their `.pyi` beside the protos.

    Raises:
        RuntimeError: protoc refused a file, or an rpc does not say which role it requires.
    """
    import grpc_tools
    from grpc_tools import protoc

    # protoc finds its plugins on PATH; in an isolated build they lie beside the interpreter.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), *_script_folders(), os.environ["PATH"]])
    sources = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    includes = Path(grpc_tools.__file__).parent / "_proto"
    arguments = ["protoc", f"-I{PROTOS}", f"-I{includes}"]
    arguments += [f"--{kind}_out={PROTOS}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    with tempfile.TemporaryDirectory() as folder:
        descriptors = Path(folder) / "descriptors"
        if protoc.main([*arguments, f"--descriptor_set_out={descriptors}", *sources]) != 0:
            raise RuntimeError("protoc could not generate the stubs of protos/malletrain/v1")
        open_to_anybody = methods_without_role(descriptors.read_bytes())
    if open_to_anybody:
        raise RuntimeError(
            f"{', '.join(open_to_anybody)}: expected `option (malletrain.v1.required_role) = ROLE_...;` in the proto: "
            "every rpc declares the role that its callers need"
        )


def methods_without_role(descriptors: bytes) -> list[str]:
    """Names of the methods that declare no role, or ROLE_UNSPECIFIED, from a serialised FileDescriptorSet."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet, MethodDescriptorProto
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.unknown_fields import UnknownFieldSet

    def declares_role(method: MethodDescriptorProto) -> bool:
        # As a message without fields: whether the option is known depends on what the process has imported.
        fields = UnknownFieldSet(Empty.FromString(method.options.SerializeToString()))
        return any(field.field_number == REQUIRED_ROLE and field.data for field in fields)

    return [
        f"{file.package}.{service.name}/{method.name}"
        for file in FileDescriptorSet.FromString(descriptors).file
        for service in file.service
        for method in service.method
        if not declares_role(method)
    ]


def _script_folders() -> list[str]:
    """Folders named bin beside an entry of sys.path: where an isolated build puts its scripts."""
    found = [parent / "bin" for entry in sys.path if entry for parent in Path(entry).parents]
    return [str(folder) for folder in dict.fromkeys(found) if (folder / "protoc-gen-mypy").exists()]


class StubsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs before every wheel, editable ones included."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        generate()
        build_data["artifacts"] += [
            f"protos/malletrain/v1/*_pb2{end}" for end in (".py", ".pyi", "_grpc.py", "_grpc.pyi")
        ]


if __name__ == "__main__":
    generate()
