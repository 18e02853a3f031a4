"""A node on which each step takes longer: the services name it, from what the workers measure of themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tests.system.deployment import deployed

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).parent / "scripts" / "uneven.py"
SETTINGS = """
[scavenger]
source = "static"
nodes = ["n1", "n2", "n3"]
debounce_seconds = 0
"""


def test_the_node_that_the_others_wait_for_is_named(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with deployed(tmp_path / "up", SETTINGS) as system:
        wait_until(lambda: len(system.json("nodes")) == 3, 60, "three idle nodes")
        scale = ["--min", "3", "--max", "3", "--profile", "never", "--curve", "3:100"]
        done = system.command("submit", "--backend", "torchrun", *scale, "--", "python", str(SCRIPT), "n2")
        assert done.returncode == 0, done.stderr
        job = done.stdout.strip()

        def slow() -> list[str]:
            progress = system.json("job", job)["progress"] or {}
            return [worker["node"] for worker in progress.get("slowWorkers", ())]

        wait_until(slow, 240, "a slow worker")
        assert slow() == ["n2"]
        wait_until(lambda: "called slow: n2: " in system.command("nodes").stderr, 60, "the Scavenger's word")
        assert "ms of its own in a step, the others" in system.command("job", job).stdout
