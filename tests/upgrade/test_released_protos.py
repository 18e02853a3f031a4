"""The protos are checked against those of the last release, and a change that breaks them is refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUF = shutil.which("buf", path=str(Path(sys.executable).parent)) or shutil.which("buf")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the protos with those of the last release."""
    if BUF is None:
        pytest.skip("needs buf (pip install buf-bin)")
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    shutil.copytree(ROOT / "protos", tmp_path / "protos", ignore=shutil.ignore_patterns("*_pb2*", "__pycache__"))
    return tmp_path


def complaints(tree: Path) -> str:
    """What buf says of the protos of a tree; empty if they are compatible."""
    (released,) = (tree / "protos" / "released").glob("*.txtpb")
    assert BUF is not None
    done = subprocess.run(
        [BUF, "breaking", "--against", str(released)], cwd=tree, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode == 0) == (done.stdout == ""), done.stderr
    return done.stdout


def change(tree: Path, name: str, before: str, after: str) -> None:
    path = tree / "protos" / "malletrain" / "v1" / f"{name}.proto"
    text = path.read_text()
    assert text.count(before) == 1, f"{name}.proto has changed: {before!r}"
    path.write_text(text.replace(before, after))


def test_the_protos_are_compatible_with_those_of_the_last_release(tree: Path) -> None:
    assert complaints(tree) == ""


def test_a_new_field_is_no_break(tree: Path) -> None:
    change(tree, "agent", "message NodeLeaving {}", "message NodeLeaving {\n  int32 more = 1;\n}")
    assert complaints(tree) == ""


@pytest.mark.parametrize(
    ("name", "before", "after", "expected"),
    [
        pytest.param("supervisor", "int32 pid = 3;", "int32 pid = 4;", '"pid"', id="another number"),
        pytest.param("supervisor", "int32 pid = 3;", "int32 process = 3;", '"pid" to "process"', id="another name"),
        pytest.param("supervisor", "int32 pid = 3;", "string pid = 3;", "type", id="another type"),
        pytest.param("supervisor", "  int32 pid = 3;\n", "  reserved 3;\n", "deleted", id="no field"),
        pytest.param("agent", "SweepJob sweep = 5;", "", "deleted", id="no request"),
        pytest.param("resources", "  JOB_REASON_SHUTDOWN = 24;\n", "", "deleted", id="no value"),
        pytest.param(
            "supervisor",
            "returns (stream WatchStateResponse)",
            "returns (WatchStateResponse)",
            "stream",
            id="unary",
        ),
    ],
)
def test_a_break_is_refused(tree: Path, name: str, before: str, after: str, expected: str) -> None:
    change(tree, name, before, after)
    assert expected in complaints(tree)
