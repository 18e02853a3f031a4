"""What the scenarios of `test_scenarios.py` need of a real batch scheduler on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

PLACEHOLDER = "malletrain"
"""Job name of placeholders."""


class BatchCluster(Protocol):
    """A running scheduler with some nodes, a main queue, and a preemptible one for placeholders."""

    name: str
    """`slurm` or `pbs`."""
    nodes: tuple[str, ...]
    head: str
    """Address at which the nodes reach this machine."""
    interface: str
    """By which the nodes reach each other."""
    start_seconds: float
    """By when a main job must have started behind placeholders."""

    @property
    def environment(self) -> Mapping[str, str]:
        """What its commands, and all that call them, need."""

    @property
    def source(self) -> dict[str, Any]:
        """The section of the Scavenger for this scheduler, without `hold`."""

    @property
    def topology(self) -> dict[str, Any]:
        """More of that section: racks of the nodes are asked for."""

    def placeholders(self) -> dict[str, str]:
        """Running jobs in the queue of placeholders that have their name: the node of each."""

    def is_running(self, identifier: str) -> bool:
        """Whether a job runs."""

    def mark_of(self, identifier: str) -> str:
        """By what a placeholder is known as this installation's."""

    def submit_lookalike(self, node: str, queue: str, mark: str = "") -> str:
        """Hand in a job for a node that is called like a placeholder, and has a mark; it lasts until it is ended."""

    def submit_main(self, nodes: int, script: str) -> str:
        """Hand in a job of the main queue for whole nodes."""

    def set_offline(self, node: str) -> None:
        """Take a node out of use, as an operator does."""

    def set_online(self, node: str) -> None:
        """The opposite."""

    def reserve(self, node: str, delay_seconds: int, seconds: int) -> str:
        """Reserve a node from then on, for so long; returns the reservation's name."""

    def end_reservation(self, name: str) -> None:
        """Delete it, if there is such a reservation."""

    def kill_server(self) -> None:
        """kill -9 of the server, when it has stored what it knows."""

    def start_again(self) -> None:
        """Start what has ended."""

    def end_job(self, identifier: str) -> None:
        """End one."""

    def end_jobs(self) -> None:
        """End all jobs, and wait for it."""


def noting(stamp: Path, seconds: int) -> str:
    """The script of a main job that notes when it starts, and lasts so long."""
    return f"LC_ALL=C\necho $EPOCHREALTIME >{stamp}.part\nmv {stamp}.part {stamp}\nsleep {seconds}"
