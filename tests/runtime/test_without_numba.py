"""Where Numba is not installed, the solver and the selection of jobs pass the tests that compiled ones pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from malletrain.cli.main import application

ROOT = Path(__file__).parents[2]
_FILES = (
    "allocator/test_choice_table.py",
    "allocator/test_knapsack.py",
    "allocator/test_owner_limits.py",
    "allocator/test_ties.py",
    "selection/test_select.py",
)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_cores_answer_without_numba() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.without_numba", "-p", "no:cacheprovider"]
    files = [f"tests/{name}" for name in _FILES]
    done = subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-4000:]


def test_a_simulation_says_how_it_gets_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("job,submit_s,nodes,run_s,estimate_s\n1,0,2,10,20\n2,1,3,10,20\n")
    jobs.with_suffix(".json").write_text('{"nodes": 4}')
    ask = ["batch", "--workload", str(jobs), "--select", "weighted", "--json"]
    assert "note:" not in CliRunner().invoke(application(), ask).stderr
    monkeypatch.setattr("malletrain.cli.shared.output.find_spec", lambda _: None)
    done = CliRunner().invoke(application(), ask)
    assert done.exit_code == 0, done.stderr
    assert "pip install 'malletrain[sim]'" in done.stderr
