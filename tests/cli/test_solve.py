"""`malletrain solve`: the interface that scripts rely on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.system.deployment import run_command

PROBLEM: dict[str, Any] = {
    "nodes": ["n1", "n2", "n3"],
    "forwardSeconds": 120,
    "costModel": "COST_MODEL_PAPER",
    "jobs": [
        {
            "id": "a",
            "minNodes": 1,
            "maxNodes": 64,
            "scaleUpSeconds": 18,
            "scaleDownSeconds": 12,
            "weight": 1,
            "curve": [{"nodes": 1, "rate": 7115.3}, {"nodes": 2, "rate": 13071.7}],
            "currentNodes": ["n1"],
        }
    ],
}


def write(folder: Path, content: object) -> str:
    path = folder / "problem.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


@pytest.mark.parametrize("formulation", ["auto", "dp", "counts", "nodes", "milp"])
def test_json_out_has_the_documented_form(tmp_path: Path, formulation: str) -> None:
    done = run_command("solve", write(tmp_path, PROBLEM), "--json", "--formulation", formulation, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["objective"] == pytest.approx(120 * 13071.7 - 18 * 7115.3)
    assert answer["status"] == "OPTIMAL"
    assert answer["assignments"] == [{"jobId": "a", "nodes": ["n1", "n2"]}]
    assert answer["solveSeconds"] > 0
    assert answer["solver"] == ("dp" if formulation in ("auto", "dp") else f"highs-{formulation}")


def test_a_waiting_job_is_listed_with_no_nodes(tmp_path: Path) -> None:
    done = run_command(
        "solve",
        write(tmp_path, {**PROBLEM, "nodes": ["n1"], "jobs": [{**PROBLEM["jobs"][0], "minNodes": 2}]}),
        "--json",
        cwd=tmp_path,
    )
    assert json.loads(done.stdout)["assignments"] == [{"jobId": "a", "nodes": []}]


def test_without_json_a_table(tmp_path: Path) -> None:
    done = run_command("solve", write(tmp_path, PROBLEM), cwd=tmp_path)
    assert done.returncode == 0
    assert "1 → 2" in done.stdout
    assert "OPTIMAL by dp" in done.stdout


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({**PROBLEM, "nodez": []}, "nodez"),
        ({**PROBLEM, "nodes": ["n1", "n1"]}, "nodes[1]"),
        ({**PROBLEM, "forwardSeconds": -1}, "forward_seconds"),
        ({**PROBLEM, "forwardSeconds": "soon"}, "forwardSeconds"),
        ({**PROBLEM, "costModel": "CHEAP"}, "costModel"),
        ({**PROBLEM, "jobs": [{**PROBLEM["jobs"][0], "minNodes": -1}]}, "jobs[0].min_nodes"),
        ({**PROBLEM, "jobs": [{**PROBLEM["jobs"][0], "curve": []}]}, "jobs[0].curve"),
        ({**PROBLEM, "jobs": [{**PROBLEM["jobs"][0], "weight": 0}]}, "jobs[0].weight"),
        ("{", "line 1"),
        ("[]", "problem.json"),
        ("", "problem.json"),
    ],
)
def test_a_wrong_file_is_one_clear_line(tmp_path: Path, content: object, expected: str) -> None:
    done = run_command("solve", write(tmp_path, content), "--json", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert expected in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_missing_file_and_a_wrong_formulation(tmp_path: Path) -> None:
    assert run_command("solve", "nowhere.json", cwd=tmp_path).returncode == 2
    assert run_command("solve", write(tmp_path, PROBLEM), "--formulation", "guess", cwd=tmp_path).returncode == 2
