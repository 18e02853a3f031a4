"""HiGHS makes every plan of a live system that is told so, and plans say it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = pytest.mark.system

SETTINGS = """
[scavenger]
source = "static"
nodes = ["n1", "n2", "n3", "n4", "n5"]
debounce_seconds = 0

[allocator]
formulation = "milp"
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("up"), SETTINGS) as deployment:
        wait_until(lambda: len(deployment.json("nodes")) == 5, 60, "five idle nodes")
        yield deployment


def submit(system: Deployment, curve: str) -> str:
    job = ("--backend", "command", "--min", "1", "--max", "3", "--curve", curve, "--", "sleep", "600")
    done = system.command("submit", *job)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_highs_makes_every_plan(system: Deployment) -> None:
    first = submit(system, "1:100,2:190,3:270")
    wait_until(lambda: len(system.job(first).commanded_nodes) == 3, 60, "three nodes")
    second = submit(system, "1:200,2:390,3:570")
    wait_until(lambda: len(system.job(second).commanded_nodes) == 3, 60, "three nodes for who gains more by them")
    wait_until(lambda: len(system.job(first).commanded_nodes) == 2, 60, "the others")
    newest = system.json("plan")
    with_jobs = [
        plan
        for plan in (system.json("plan", str(number)) for number in range(1, int(newest["generation"]) + 1))
        if plan["problem"].get("jobs")
    ]
    assert with_jobs
    assert {plan["allocation"]["solver"] for plan in with_jobs} == {"highs-milp"}
    assert {plan["allocation"]["status"] for plan in with_jobs} == {"OPTIMAL"}
    assert "OPTIMAL by highs-milp in " in system.command("plan").stdout
