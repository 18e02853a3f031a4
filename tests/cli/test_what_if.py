"""The process that replays a what-if of the dashboard."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from malletrain.cli.journal.what_if import main
from malletrain.simulator.journal.conversion import what_if
from malletrain.simulator.replay.options import ReplayOptions, ReplayPolicy
from tests.simulator.journal.test_what_if import BEGIN, END, journal


def asked(folder: Path, **changed: Any) -> str:
    (folder / "kept.past").write_bytes(pickle.dumps(journal()))
    (folder / "malletrain.toml").write_text(f'state_dir = "{folder}/state"\n')
    request = {
        "past": str(folder / "kept.past"),
        "until": END + 100.0,
        "days": 7.0,
        "forward_s": 240.0,
        "forward_policy": "constant",
        "max_parallel": 3,
        "policy": "equal",
        "token": "",
        "config": str(folder / "malletrain.toml"),
        "seconds": 300.0,
        "bytes": 4 * 2**30,
    }
    return json.dumps(request | changed)


def replayed(request: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", main.__module__)
    return subprocess.run(command, input=request, capture_output=True, text=True, timeout=120, check=False)


def test_it_replays_with_what_is_asked_for_and_tells_how_far_it_is(tmp_path: Path) -> None:
    done = replayed(asked(tmp_path))
    assert done.returncode == 0, done.stderr
    *shares, last = map(json.loads, done.stdout.splitlines())
    told = [line["share"] for line in shares]
    assert told == sorted(told)
    found = last["found"]
    options = ReplayOptions(duration_s=END - BEGIN, forward_s=240.0, max_parallel=3, policy=ReplayPolicy.EQUAL)
    expected = what_if(journal(), BEGIN, END, options)
    assert found["replay"]["samples"] == pytest.approx(expected.replay.samples)
    assert found["free"]["efficiency"] == pytest.approx(expected.free.efficiency)
    assert [job["job_id"] for job in found["jobs"]] == [job.job_id for job in expected.jobs]
    assert found["notes"][0] == "The idle set is known for 1.0 h of this time only."


def test_it_says_in_one_line_why_it_can_not(tmp_path: Path) -> None:
    done = replayed(asked(tmp_path, until=BEGIN))
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["past: expected a time of which something is recorded"]
