"""A metric of a job's own, with all services: what is submitted is kept, planned by, and told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.long, pytest.mark.system, pytest.mark.timeout(900)]

SECONDS = 240.0
SCRIPT = Path(__file__).with_name("scripts") / "steady.py"
SETTINGS = """
[access]
munge = "off"
[scavenger]
source = "static"
nodes = ["n1", "n2", "n3", "n4"]
debounce_seconds = 0
[job_manager]
reconcile_seconds = 0.1
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("values"), SETTINGS, seconds=SECONDS) as deployment:
        yield deployment


def submit(system: Deployment, folder: Path, *options: str) -> str:
    folder.mkdir()
    shape = ("--backend", "command", "--profile", "never", "--min", "1", "--max", "4", "--curve", "1:100,4:400")
    done = system.command("submit", *shape, *options, "--", sys.executable, str(SCRIPT), str(folder), "0", timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def scales(system: Deployment, *job_ids: str) -> list[int]:
    return [len(system.job(job_id).wanted_nodes) for job_id in job_ids]


def test_plans_follow_what_speeds_count_for(system: Deployment, tmp_path: Path) -> None:
    first = submit(system, tmp_path / "a", "--weight", "2")
    second = submit(system, tmp_path / "b")
    wait_until(lambda: scales(system, first, second) == [4, 0], SECONDS, "all nodes for the larger weight")
    system.command("cancel", first, second)
    first = submit(system, tmp_path / "c", "--weight", "2", "--value", "diminishing=0.5")
    second = submit(system, tmp_path / "d", "--value", "diminishing=0.5")
    wait_until(lambda: scales(system, first, second) == [3, 1], SECONDS, "nodes for both")
    assert "diminishing=0.5" in system.command("job", first).stdout
    assert 'value = "diminishing=0.5"' in system.command("job", first, "--toml").stdout
    system.command("cancel", first, second)
    # 150 samples/s are needed from the submission on, a bit more by the time of the plan: two nodes.
    first = submit(system, tmp_path / "e", "--weight", "2")
    second = submit(system, tmp_path / "f", "--value", "deadline=10h:8", "--target-samples", str(36_000 * 150))
    wait_until(lambda: scales(system, first, second) == [2, 2], SECONDS, "as many nodes as the deadline needs")
    refused = system.command("submit", "--value", "deadline=10h", "--", "true")
    assert refused.returncode == 2
    assert "target_samples" in refused.stderr
