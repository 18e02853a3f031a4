"""A real Slurm for scenarios that hold with every batch scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tests.schedulers.batch_cluster import PLACEHOLDER
from tests.slurm.cluster import Cluster
from tests.support.waiting import wait_until

_INTERVALS = {"queue_interval_seconds": 1, "reservations_interval_seconds": 1}


@dataclass(frozen=True)
class SlurmCluster:
    """See `BatchCluster`.

    Attributes:
        slurm: The Slurm.
        name: Of its kind.
        head: Address at which the nodes reach this machine.
        interface: By which the nodes reach each other.
        start_seconds: By when a main job must have started behind placeholders.
    """

    slurm: Cluster
    name: str = "slurm"
    head: str = "127.0.0.1"
    interface: str = "lo"
    start_seconds: float = 30.0

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of its nodes."""
        return self.slurm.nodes

    @property
    def environment(self) -> dict[str, str]:
        """What its commands, and all that call them, need."""
        return self.slurm.environment

    @property
    def source(self) -> dict[str, Any]:
        """The section of the Scavenger, without `hold`."""
        return {"partitions": ["main"], "interval_seconds": 0.5, **_INTERVALS}

    @property
    def topology(self) -> dict[str, Any]:
        """See `BatchCluster`."""
        return {"topology": True, "classes_interval_seconds": 5}

    def placeholders(self) -> dict[str, str]:
        """See `BatchCluster`."""
        which = ["--noheader", "--partition=scavenge", f"--name={PLACEHOLDER}", "--states=RUNNING"]
        return dict(line.split() for line in self.slurm.run("squeue", *which, "--format=%i %N").splitlines())

    def is_running(self, identifier: str) -> bool:
        """See `BatchCluster`."""
        return (identifier, "RUNNING") in [job[:2] for job in self.slurm.jobs()]

    def mark_of(self, identifier: str) -> str:
        """See `BatchCluster`: the comment."""
        return self.slurm.run("squeue", "--noheader", f"--jobs={identifier}", "--format=%k").strip()

    def submit_lookalike(self, node: str, queue: str, mark: str = "") -> str:
        """See `BatchCluster`."""
        how = [f"--partition={queue}", f"--job-name={PLACEHOLDER}", "--exclusive", f"--nodelist={node}"]
        marked = [f"--comment={mark}"] if mark else []
        return self.slurm.run(
            "sbatch", "--parsable", *how, *marked, "--output=/dev/null", "--wrap=exec sleep 600"
        ).strip()

    def submit_main(self, nodes: int, script: str) -> str:
        """See `BatchCluster`."""
        return self.slurm.submit(nodes, script)

    def set_offline(self, node: str) -> None:
        """See `BatchCluster`."""
        self.slurm.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")

    def set_online(self, node: str) -> None:
        """See `BatchCluster`."""
        self.slurm.run("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def reserve(self, node: str, delay_seconds: int, seconds: int) -> str:
        """See `BatchCluster`. Slurm reserves whole minutes."""
        begin = (datetime.now() + timedelta(seconds=delay_seconds)).strftime("%Y-%m-%dT%H:%M:%S")
        minutes = max(1, seconds // 60)
        how = [f"StartTime={begin}", f"Duration={minutes}", f"Nodes={node}", "Users=root", "ReservationName=kept"]
        self.slurm.run("scontrol", "create", "reservation", *how)
        return "kept"

    def end_reservation(self, name: str) -> None:
        """See `BatchCluster`."""
        if f"ReservationName={name}" in self.slurm.run("scontrol", "-o", "show", "reservations"):
            self.slurm.run("scontrol", "delete", f"ReservationName={name}")

    def kill_server(self) -> None:
        """See `BatchCluster`."""
        self.slurm.await_stored()
        self.slurm.kill_controller()

    def start_again(self) -> None:
        """See `BatchCluster`."""
        self.slurm.start_again()

    def end_job(self, identifier: str) -> None:
        """See `BatchCluster`."""
        self.slurm.run("scancel", identifier)

    def end_jobs(self) -> None:
        """See `BatchCluster`."""
        self.slurm.run("scancel", "--user=root")
        wait_until(lambda: not self.slurm.jobs(), 60, "the end of all jobs")
