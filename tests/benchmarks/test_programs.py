"""The benchmarks run as programs, as briefly as they can."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.faulting.record import read
from benchmarks.faulting.trials import STOP
from malletrain.runtime.settings_file import SERVICES

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.training, pytest.mark.horovod, pytest.mark.timeout(600)]


def test_rescale_prints_one_object_of_medians() -> None:
    command = [sys.executable, "benchmarks/rescale.py", "--json", "--repeats", "1", "--only", "horovod"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)
    found = json.loads(done.stdout)
    assert found.keys() == {"growth_pause_s", "shrink_pause_s", "kill_recovery_s"}
    assert all(list(seconds) == ["horovod"] and seconds["horovod"] > 0 for seconds in found.values())


def test_faults_are_recorded_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "faults.jsonl"
    command = [sys.executable, "benchmarks/faults.py", "--repeats", "1", "--file", str(path)]
    command += ["--only", "kill -9 of rank 0", "--only", "all hosts replaced", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    trials = read(path)
    assert [trial.fault for trial in trials] == ["kill -9 of rank 0", "all hosts replaced", STOP]
    assert all(trial.went_on and not trial.processes_left for trial in trials)
    assert all(trial.stalled_s > 0 for trial in trials[:2])
    assert [entry["fault"] for entry in json.loads(done.stdout)] == [trial.fault for trial in trials]


def test_sizing_measures_every_service() -> None:
    command = [sys.executable, "benchmarks/sizing.py", "--json", "--nodes", "20", "--jobs", "2", "--seconds", "15"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {*SERVICES, "supervisor", "sidecar"} <= found["use"].keys()
    assert all(use["pss_mib"] > 1 for use in found["use"].values())
    assert found["training"] >= 1
