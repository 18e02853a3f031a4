"""Doctor and a real OpenPBS that is set up wrongly, in one way after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.cli.operate.doctor_pbs import examine_pbs
from malletrain.scavenger.sources.schedulers.settings import PbsSettings
from tests.pbs.cluster import PbsCluster, missing, pbs_cluster

pytestmark = [pytest.mark.pbs, pytest.mark.timeout(300)]

NODES = 2
SECTION = PbsSettings.model_validate({"queues": ["main"], "hold": {"queue": "scavenge"}})
QUEUE, MAIN = "set queue scavenge", "set queue main"
WRONG = [
    (f"{QUEUE} acl_users = nobody", f"{QUEUE} acl_users = root", "permission of queue scavenge"),
    (f"{QUEUE} enabled = False", f"{QUEUE} enabled = True", "queue scavenge"),
    (f"{QUEUE} started = False", f"{QUEUE} started = True", "queue scavenge"),
    (f"{QUEUE} from_route_only = True", f"{QUEUE} from_route_only = False", "from_route_only of scavenge"),
    (f"{QUEUE} max_run = [u:PBS_GENERIC=1]", "unset queue scavenge max_run", "limits of scavenge"),
    (
        f"{QUEUE} resources_max.walltime = 00:00:10",
        "unset queue scavenge resources_max.walltime",
        "resources_max.walltime of scavenge",
    ),
    (
        "unset queue scavenge resources_default.soft_walltime",
        f"{QUEUE} resources_default.soft_walltime = 00:01:00",
        "soft_walltime of scavenge",
    ),
    (f"{MAIN} Priority = 10", f"{MAIN} Priority = 200", "Priority of main"),
    (
        "unset queue main resources_default.preempt_targets",
        f'{MAIN} resources_default.preempt_targets = "queue=scavenge"',
        "preempt_targets of main",
    ),
    ("set server scheduling = False", "set server scheduling = True", "scheduling"),
    ("set server query_other_jobs = False", "set server query_other_jobs = True", "jobs of others"),
    ("set server backfill_depth = 0", "set server backfill_depth = 5", "planned starts"),
    ("set sched preempt_order = R", "set sched preempt_order = D", "preempt_order"),
    (
        "set sched preempt_prio = 'normal_jobs'",
        "set sched preempt_prio = 'express_queue, normal_jobs'",
        "preempt_prio",
    ),
]
"""What an operator does, what takes it back, and the check that names it."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[PbsCluster]:
    if reason := missing():
        pytest.skip(reason)
    with pbs_cluster(NODES) as running:
        yield running


@pytest.fixture
def pbs(cluster: PbsCluster, monkeypatch: pytest.MonkeyPatch) -> PbsCluster:
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    return cluster


@pytest.mark.parametrize(("change", "back", "check"), WRONG, ids=[change for change, _, _ in WRONG])
def test_one_mistake_is_named_and_nothing_else(pbs: PbsCluster, change: str, back: str, check: str) -> None:
    assert wrong() == set()
    pbs.run("qmgr", "-c", change)
    try:
        assert wrong() == {check}
    finally:
        pbs.run("qmgr", "-c", back)
    assert wrong() == set()


def test_a_scheduler_that_preempts_nobody_is_named(pbs: PbsCluster) -> None:
    file = Path(pbs.folder, "home", "sched_priv", "sched_config")
    good = file.read_text()
    file.write_text(good.replace("preemptive_sched: true", "preemptive_sched: false"))
    try:
        assert wrong() == {"preemptive_sched"}
    finally:
        file.write_text(good)


def wrong() -> set[str]:
    return {one.check for one in examine_pbs(SECTION) if not one.ok}
