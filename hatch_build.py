"""Build hook: generates the gRPC stubs of `malletrain.v1`, with type stubs, from `protos/`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
PROTOS = ROOT / "protos"


def generate() -> None:
    """Write `*_pb2.py`, `*_pb2_grpc.py` and their `.pyi` beside the protos.

    Raises:
        RuntimeError: protoc refused a file.
    """
    import grpc_tools
    from grpc_tools import protoc

    # protoc finds its plugins on PATH; in an isolated build they lie beside the interpreter.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), *_script_folders(), os.environ["PATH"]])
    sources = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    includes = Path(grpc_tools.__file__).parent / "_proto"
    arguments = ["protoc", f"-I{PROTOS}", f"-I{includes}"]
    arguments += [f"--{kind}_out={PROTOS}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    if protoc.main(arguments + sources) != 0:
        raise RuntimeError("protoc could not generate the stubs of protos/malletrain/v1")


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
