"""`malletrain check` on real scripts: it names the known fault of each, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch")

from malletrain.common.environment import JOB_DIR
from malletrain.common.processes import find_processes
from tests.cli.check_scripts.train import FAULTS
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.faulty_scripts, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).with_name("check_scripts") / "train.py"
UNDER_HOROVOD = SCRIPT.with_name("horovod_train.py")
FAULTS_UNDER_HOROVOD = ("none", "learning_rate", "loader_not_resumed", "same_samples", "save_blocks")
QUICK = {"hangs": "20"}
"""Longest boot in seconds, where waiting for it is what is tested."""


def command(fault: str, *options: str, script: Path = SCRIPT) -> list[str]:
    limits = ["--boot-limit", QUICK.get(fault, "120"), "--time-limit", "500", "--json"]
    words = ["python", str(script), "--fault", fault]
    return [sys.executable, "-m", "malletrain.cli.main", "check", *limits, *options, "--", *words]


def processes_below(folder: Path) -> list[int]:
    """Processes of jobs in a folder."""
    return [found.id.pid for found in find_processes(lambda found: found.get(JOB_DIR, "").startswith(str(folder)))]


@pytest.mark.parametrize("fault", FAULTS)
def test_it_names_the_fault_and_nothing_else(tmp_path: Path, fault: str) -> None:
    check(command(fault), tmp_path, fault)


@pytest.mark.parametrize("fault", FAULTS_UNDER_HOROVOD)
def test_it_names_the_fault_and_nothing_else_under_horovod(tmp_path: Path, fault: str) -> None:
    pytest.importorskip("horovod.torch", reason="needs Horovod: run deploy/install-horovod.sh")
    found = check(command(fault, script=UNDER_HOROVOD), tmp_path, fault)
    assert [verdict["backend"] for verdict in found["backends"]] == ["horovod"]


def check(words: list[str], folder: Path, fault: str) -> dict[str, Any]:
    """Check a script, which has this fault and no other."""
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    wanted = [] if fault == "none" else [fault]
    assert [finding["code"] for finding in found["findings"]] == wanted, done.stdout
    assert done.returncode == len(wanted)
    assert all(finding["change"] for finding in found["findings"])
    return found


def test_ctrl_c_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    checking = subprocess.Popen(
        command("hangs", "--boot-limit", "400"),
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: len(processes_below(temporary)) >= 2, 300, "supervisor and worker")
        checking.send_signal(signal.SIGINT)
        assert checking.wait(60) == 130
    finally:
        checking.kill()
        checking.wait()
    assert processes_below(temporary) == []
    assert list(temporary.glob("malletrain*")) == []


def test_a_script_that_is_not_there_is_no_finding(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "malletrain.cli.main", "check", "--", "python", "missing.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "a script that exists" in done.stderr
