"""The cgroups of an agent: one for each job and place on its node, and one for each user's standby processes."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from malletrain.common.cgroups import Cgroup, Cgroups, group_name, open_cgroups
from malletrain.common.processes import ProcessId, this_process

_PREFIX = "malletrain-agent-"
_PATIENCE_SECONDS = 0.5
"""Beside each other, processes of a job end in milliseconds; a node that is wanted back waits no longer."""

Open = Callable[[str, Callable[[str], None]], Cgroups]


def agent_folder_name(head: str, node: str, agent: ProcessId) -> str:
    """Name of the folder of an agent's cgroups.

    Args:
        head: Where its Scavenger is.
        agent: The agent itself.
    """
    return f"{_stem(head, node)}.{agent.pid}.{agent.start_time}"


def agent_of(name: str, head: str, node: str) -> ProcessId | None:
    """Which agent of a node has made a folder; None: none of this node and installation has."""
    stem, *numbers = name.split(".")
    if stem != _stem(head, node) or len(numbers) != 2 or not all(text.isdigit() for text in numbers):
        return None
    return ProcessId(int(numbers[0]), int(numbers[1]))


def _stem(head: str, node: str) -> str:
    return _PREFIX + hashlib.sha256(f"{head}\0{node}".encode(errors="surrogateescape")).hexdigest()[:16]


class NodeCgroups:
    """Cgroups of one agent's workers. No method fails: processes can also be found by parents and environment."""

    def __init__(self) -> None:
        self._groups = Cgroups(None, lambda _: None)

    def open(self, head: str, node: str, say: Callable[[str], None], open_below: Open = open_cgroups) -> None:
        """Have them from here on, if the system lets us. What dead agents of the node have left in theirs is ended.

        Args:
            head: Where the agent's Scavenger is.
            say: Called with a line of text about what happens.
            open_below: Opens cgroups in a folder of a name.
        """
        groups = open_below(agent_folder_name(head, node, this_process()), say)
        if groups.folder is None:
            say(f"workers have no cgroups: {groups.reason}")
        else:
            say(f"workers have cgroups in {groups.folder}")
            _end_leftovers(groups.folder.parent, head, node, say)
        self._groups = groups

    def of(self, job_id: str, place: str) -> Cgroup | None:
        """The cgroup of a job's workers in a place, which is made if there is none; None where it can't be."""
        return self._groups.make(_job_name(job_id, place))

    def end(self, job_id: str, places: Iterable[str]) -> None:
        """End all that is in a job's cgroups of some places, and remove them. May be called in any thread."""
        for place in places:
            self._groups.end(_job_name(job_id, place), _PATIENCE_SECONDS)

    def of_standbys(self, user_id: int) -> Cgroup | None:
        """The cgroup of a user's standby processes: they may have run code of the user."""
        return self._groups.make(_standby_name(user_id))

    def end_standbys(self, user_id: int) -> None:
        """End what a user's standby processes have left behind."""
        self._groups.end(_standby_name(user_id), _PATIENCE_SECONDS)

    def kill_all(self) -> None:
        """Kill all that is in any of them, without waiting for the end."""
        self._groups.kill_all()

    def remove(self) -> None:
        """Remove all that are empty."""
        self._groups.remove_all()


def _job_name(job_id: str, place: str) -> str:
    return group_name("job", job_id, place)


def _standby_name(user_id: int) -> str:
    return group_name("standby", user_id)


def _end_leftovers(above: Path, head: str, node: str, say: Callable[[str], None]) -> None:
    with contextlib.suppress(OSError), os.scandir(above) as entries:
        for name in [entry.name for entry in entries]:
            agent = agent_of(name, head, node)
            if agent is not None and not agent.alive():
                Cgroups(above, say).end(name, _PATIENCE_SECONDS)
