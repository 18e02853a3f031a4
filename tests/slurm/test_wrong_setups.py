"""Doctor and a real Slurm that is set up wrongly, in one way after the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from malletrain.cli.operate.doctor_slurm import examine_slurm
from malletrain.scavenger.sources.schedulers.settings import SlurmSettings
from tests.slurm.cluster import Cluster, cluster, missing
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

SECTION = SlurmSettings.model_validate({"partitions": ["main"], "hold": {"queue": "scavenge"}})
CHECKS_NO_ACCOUNTS = (23, 2)
"""From this release on, unless associations are enforced."""
UPDATE = "update PartitionName=scavenge"
PARTITIONS = [
    (f"{UPDATE} State=DOWN", f"{UPDATE} State=UP", "partition scavenge"),
    (f"{UPDATE} PreemptMode=OFF", f"{UPDATE} PreemptMode=CANCEL", "PreemptMode of scavenge"),
    (f"{UPDATE} PriorityTier=10", f"{UPDATE} PriorityTier=1", "PriorityTier of main"),
    (f"{UPDATE} GraceTime=300", f"{UPDATE} GraceTime=10", "GraceTime"),
    (f"{UPDATE} GraceTime=1", f"{UPDATE} GraceTime=10", "GraceTime"),
    (f"{UPDATE} MaxTime=00:01:00", f"{UPDATE} MaxTime=1-0", "MaxTime"),
    (f"{UPDATE} State=DRAIN", f"{UPDATE} State=UP", "partition scavenge"),
    (f"{UPDATE} AllowAccounts=ours", f"{UPDATE} AllowAccounts=ALL", "AllowAccounts of scavenge"),
    (
        "create PartitionName=debug Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE",
        "delete PartitionName=debug",
        "PreemptMode of debug",
    ),
]
"""What an operator tells scontrol, what takes it back, and the check that names it."""
CONFIGURATION = [
    ("KillWait=5", "KillWait=1", "KillWait"),
    ("ReturnToService=1", "ReturnToService=2", "ReturnToService"),
    ("MinJobAge=300", "MinJobAge=300\nCompleteWait=20", "CompleteWait"),
]
"""A line of slurm.conf, what is wrong in its place, and the check that names it."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := missing():
        pytest.skip(reason)
    with cluster(tmp_path_factory.mktemp("slurm"), 2) as slurm:
        yield slurm


@pytest.fixture
def slurm(running: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    return running


@pytest.mark.parametrize(("change", "back", "check"), PARTITIONS, ids=[change for change, _, _ in PARTITIONS])
def test_one_mistake_in_a_partition_is_named(slurm: Cluster, change: str, back: str, check: str) -> None:
    if check.startswith("AllowAccounts") and slurm.release < CHECKS_NO_ACCOUNTS:
        pytest.skip("this Slurm checks accounts by itself")
    before = wrong()
    assert check not in before
    slurm.run("scontrol", *change.split())
    try:
        found = wrong() - before
        assert check in found
        assert found <= {check, "permission"}, "nothing else, but that a job is refused"
    finally:
        slurm.run("scontrol", *back.split())
    assert wrong() == before


@pytest.mark.parametrize(("line", "instead", "check"), CONFIGURATION, ids=[check for _, _, check in CONFIGURATION])
def test_one_mistake_in_the_configuration_is_named(slurm: Cluster, line: str, instead: str, check: str) -> None:
    file = slurm.folder / "slurm.conf"
    good, before = file.read_text(), wrong()
    assert check not in before
    assert line in good
    try:
        file.write_text(good.replace(line, instead))
        slurm.run("scontrol", "reconfigure")
        wait_until(lambda: wrong() - before == {check}, 30, f"{check} to be named")
    finally:
        file.write_text(good)
        slurm.run("scontrol", "reconfigure")
    wait_until(lambda: wrong() == before, 30, "nothing more to be named")


def wrong() -> set[str]:
    return {one.check for one in examine_slurm(SECTION) if not one.ok}
