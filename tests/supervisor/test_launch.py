"""A launch that can't be used is refused with its reason."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from malletrain.common.job_limits import JobLimits
from malletrain.supervisor.context import LaunchError, read_launch

LAUNCH: dict[str, Any] = {
    "job_id": "j000001",
    "backend": "horovod",
    "command": ["python", "train.py"],
    "working_directory": "/",
    "environment": {"A": "b"},
    "slots_per_node": 2,
    "max_nodes": 4,
    "socket": "/tmp/s",
    "sequence": 3,
    "hosts": [{"name": "n1", "slots": 2}],
}


def test_a_launch_is_read(tmp_path: Path) -> None:
    (tmp_path / "launch.json").write_text(json.dumps(LAUNCH))
    launch = read_launch(tmp_path)
    assert launch.command == ("python", "train.py")
    assert launch.hosts == {"n1": 2}
    assert (launch.sequence, launch.slots_per_node) == (3, 2)


def test_limits_of_a_later_version_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "launch.json").write_text(json.dumps({**LAUNCH, "limits": {"save_seconds": 600, "nap_seconds": 5}}))
    assert read_launch(tmp_path).limits == JobLimits(save_seconds=600.0)


@pytest.mark.parametrize("missing", sorted(LAUNCH.keys() - {"max_nodes"}))
def test_a_missing_field_is_named(tmp_path: Path, missing: str) -> None:
    (tmp_path / "launch.json").write_text(json.dumps({name: LAUNCH[name] for name in LAUNCH if name != missing}))
    with pytest.raises(LaunchError, match=missing):
        read_launch(tmp_path)


@pytest.mark.parametrize("content", [None, "", "{", "[]"])
def test_what_is_no_launch_file_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "launch.json").write_text(content)
    with pytest.raises(LaunchError, match=r"launch\.json"):
        read_launch(tmp_path)


def test_an_unknown_backend_is_named(tmp_path: Path) -> None:
    (tmp_path / "launch.json").write_text(json.dumps({**LAUNCH, "backend": "smoke-signals"}))
    command = [sys.executable, "-m", "malletrain.supervisor", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "backend: expected one of horovod, torchrun, command, got 'smoke-signals'" in done.stderr
    assert json.loads((tmp_path / "outcome.json").read_text())["outcome"] == "FAILED"
