"""From runs of the control loop to the tables of the docs."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.sizing_table import fit, make_table
from malletrain.runtime.settings_file import SERVICES


def _run(jobs: int, nodes: int) -> dict[str, Any]:
    return {
        "jobs": jobs,
        "nodes": nodes,
        "measured_s": 50.0,
        "node_changes": 100,
        "pss_mib": dict.fromkeys(SERVICES, 60.0 + 0.5 * jobs + 0.25 * nodes),
        "cores": dict.fromkeys(SERVICES, 0.021),
        "grown_bytes": {"job_manager": 10_240, "logs": 0},
    }


def test_memory_is_told_apart_by_jobs_and_nodes() -> None:
    found = fit([_run(10, 100), _run(100, 100), _run(100, 1000), _run(10, 1000)], "monitor")
    assert found is not None
    assert found.base_mib == pytest.approx(60.0)
    assert found.per_job_kib == pytest.approx(512.0)
    assert found.per_node_kib == pytest.approx(256.0)
    assert found.error_mib == pytest.approx(0.0, abs=1e-9)


def test_runs_in_which_jobs_and_nodes_grow_in_step_tell_nothing() -> None:
    assert fit([_run(10, 100), _run(100, 1000)], "monitor") is None
    assert fit([_run(10, 100), _run(100, 1000), _run(1000, 10_000)], "monitor") is None
    assert fit([_run(10, 100), _run(100, 1000), _run(1000, 1000)], "monitor") is not None


def test_smaller_runs_come_first() -> None:
    table = make_table([_run(100, 1000), _run(10, 100)])
    assert table[0] == "| | 10 jobs, 100 nodes | 100 jobs, 1,000 nodes |"
    assert "| joins and leaves a second | 2.0 | 2.0 |" in table
    assert "| monitor | 90 MiB, 2.1 % | 360 MiB, 2.1 % |" in table
    assert "| job_manager, by 1,000 joins and leaves | 100 KiB | 100 KiB |" in table
