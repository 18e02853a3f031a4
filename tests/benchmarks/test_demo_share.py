"""What is said of runs of the demo."""

from __future__ import annotations

from typing import Any

from benchmarks.demo_share import faults, share, table
from malletrain.cli.demo.summary import OfferUse

LOST = {use.value: 0.0 for use in OfferUse if use is not OfferUse.TRAINING}


def run(used: float = 900.0, **changes: Any) -> dict[str, Any]:
    found = {
        "seed": 1,
        "exit": 0,
        "seconds": 180.2,
        "node_seconds_offered": 1000.0,
        "node_seconds_used": used,
        "node_seconds_lost_to": LOST | {"starting": 1000.0 - used},
        "scale_up_seconds_median": 0.41,
        "samples_lost": 0,
        "stray_processes": [],
    }
    return found | changes


def test_a_good_run_has_no_faults() -> None:
    assert faults(run(850.0)) == []


def test_each_fault_is_named() -> None:
    assert faults(run(849.0)) == ["used 84.9% of what was offered: expected at least 85%"]
    assert faults(run(exit=1, stray_processes=["pid 7"])) == ["the demo ended with exit status 1", "left: pid 7"]
    assert share(run(node_seconds_offered=0.0)) == 0.0


def test_the_table_has_a_line_for_each_run() -> None:
    lines = table([run(), run(scale_up_seconds_median=None)]).splitlines()
    assert len(lines) == 4
    assert {line.count("|") for line in lines} == {lines[0].count("|")}
    assert "| 90.0% | 100.0 |" in lines[2]
