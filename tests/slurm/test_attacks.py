"""A user attacks another one's training, Slurm and the services from a real placeholder, and tries to keep its node."""

from __future__ import annotations

import json
import os
import pwd
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from malletrain.v1 import resources_pb2
from tests.hostile import attacking_job
from tests.slurm.owners import ANN, BOB, NODES, PATIENCE, Shared, shared_harvest
from tests.support.waiting import wait_until
from tests.training import trainer_settings
from tests.training.accounts import accounts_of

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can run jobs as their owners"),
]
TRAINER = Path(trainer_settings.__file__).with_name("trainer.py")
RELEASE_SECONDS = 4.0
"""From the SIGTERM that takes a node to the end of all of ours on it: 1.5 s of grace, and what a busy machine takes."""
DENIED = {"PermissionError"}


@pytest.fixture
def shared() -> Iterator[Shared]:
    with shared_harvest() as running:
        yield running


def listening(shared: Shared) -> list[int]:
    """Ports of this installation: of services, agents and supervisors, and of Slurm."""
    ours = str(shared.jobs.parent)
    found = set()
    for one in psutil.net_connections("tcp"):
        try:
            process = psutil.Process(one.pid) if one.status == psutil.CONN_LISTEN and one.pid else None
            if process and ours in " ".join([*process.cmdline(), *process.environ().values()]):
                found.add(int(one.laddr[1]))
        except psutil.Error:
            continue
    return sorted(found)


def free_processes(mark: str) -> list[int]:
    """What the attacker has set free."""
    return [one.pid for one in psutil.process_iter(["cmdline"]) if mark in " ".join(one.info["cmdline"] or ())]


def test_a_job_that_attacks_everything_harms_nobody_and_leaves_its_node_in_time(shared: Shared, tmp_path: Path) -> None:
    mark = f"free-{os.getpid()}"
    place = shared.jobs.parent / "bob"
    place.mkdir()
    os.chown(place, pwd.getpwnam(BOB).pw_uid, -1)
    ann = shared.submit(ANN, str(TRAINER))
    wait_until(lambda: shared.samples(ann) > 0, PATIENCE, "samples of the victim")
    services = shared.harvest.deployment.pids()
    ports = ",".join(map(str, listening(shared)))
    arguments = [str(place / "report"), ann, str(shared.jobs), str(shared.harvest.deployment.folder), mark, ports]
    bob = shared.submit(BOB, attacking_job.__file__, *arguments, **AS_COMMAND, environment=shared.slurm.environment)

    def report() -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((place / "report").read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return found if "over" in found else {}

    before = shared.samples(ann)
    found = wait_until(report, PATIENCE, "the attack")
    print(json.dumps(found, indent=1))
    check_gains(found)
    wait_until(lambda: shared.samples(ann) > before, PATIENCE, "more samples of the victim")
    assert shared.harvest.deployment.pids() == services, "no service has ended"
    assert set(shared.slurm.names("n[001-003]")) == set(shared.slurm.nodes)
    assert free_processes(mark)

    stamp, taken = tmp_path / "main", time.time()
    shared.slurm.submit(NODES, f"touch {stamp}\nsleep 4")
    wait_until(stamp.exists, PATIENCE, "the main job")
    assert not free_processes(mark), "what was set free has ended with its node"
    assert not shared.harvest.watcher.look(), "the main job has its nodes for itself"
    for node, signals in shared.harvest.signals().items():
        last = max(signals)
        empty = [when for when in shared.harvest.watcher.empty.get(node, ()) if when >= last]
        print(f"{node}: empty after {min(empty) - last:.2f} s" if empty else f"{node}: never had anything")
        assert last >= taken
        assert not empty or min(empty) - last < RELEASE_SECONDS
    reached = shared.samples(ann)
    wait_until(lambda: shared.samples(ann) > reached + trainer_settings.SIZE, PATIENCE, "an epoch more of the victim")
    shared.harvest.cancel(bob)
    wait_until(lambda: shared.job(bob).state in ENDED, PATIENCE, "the end of the attacker")
    shared.harvest.cancel(ann)
    wait_until(lambda: shared.job(ann).state in ENDED, PATIENCE, "the end of the victim")
    accounts = accounts_of(shared.jobs / ann)
    assert accounts.check_epochs() >= 1
    accounts.check_state()
    assert shared.harvest.deployment.pids() == services


AS_COMMAND = {"backend": resources_pb2.LAUNCHER_BACKEND_COMMAND, "max_restarts": 5}
ENDED = (resources_pb2.JOB_STATE_COMPLETED, resources_pb2.JOB_STATE_FAILED, resources_pb2.JOB_STATE_CANCELLED)


def check_gains(found: dict[str, Any]) -> None:
    """What the attacker has got: what is meant for everybody, and nothing else."""
    for name in (
        "list jobs",
        "victim's folder",
        "victim's token",
        "victim's log",
        "replace victim",
        "keys",
        "database",
    ):
        assert found[name] in DENIED, name
    assert found["processes"] == []
    assert found["killed"] == []
    assert found["files"] == []
    assert found["slurm"]["squeue"] == 0, "it can use Slurm as any user"
    assert found["slurm"]["jobs of root"] > 0, "it sees the placeholders"
    assert found["slurm"]["secrets"] == []
    assert not found["slurm"]["script of others"]
    # MUNGE and slurmstepd serve everybody.
    reached = [path for path in found["sockets"]["unix"] if "/slurm/" not in path]
    assert not [path for path in reached if "malletrain" in path]
    assert found["sockets"]["tcp"], "garbage has arrived"
    assert found["forked"] > 0
