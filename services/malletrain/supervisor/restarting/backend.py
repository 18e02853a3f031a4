"""What a supervisor asks of a launcher backend whose workers are all restarted at every change."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from malletrain.common import environment as env
from malletrain.common.files import write_atomically
from malletrain.common.gpus import gpu_number, node_of, visible_gpu
from malletrain.common.job_folder import HOSTS_FILE
from malletrain.supervisor.elastic.membership import slots_of
from malletrain.supervisor.workers.promise import Hosts
from malletrain.supervisor.workers.slot import Slot


class RestartingBackend(Protocol):
    """The processes of a generation, and how they find each other. Called from the supervisor's main thread only.

    Attributes:
        warm: Whether workers import what they need before they get their rank.
        hands_over: Whether workers may leave their state in memory to those that take their places.
    """

    warm: bool
    hands_over: bool

    def defaults(self) -> Mapping[str, str]:
        """Environment variables that a worker gets unless its job sets them."""

    def is_ready(self) -> bool:
        """Whether a generation can be formed."""

    def slots(self, hosts: Hosts) -> tuple[Slot, ...]:
        """The slots on these hosts that get a process, in rank order."""

    def occupies(self, trained: Hosts, hosts: Iterable[str]) -> frozenset[Slot]:
        """The members of a generation that use any of these hosts, wherever their process is.

        Args:
            trained: Hosts and slots of the generation.
            hosts: The hosts in question.
        """

    def places(self, epoch: int, hosts: Hosts) -> Mapping[Slot, Mapping[str, str]]:
        """The environment that the members of a generation get, before it is formed; it is the same if it is.

        Returns:
            Empty if the workers make no use of it before.
        """

    def form(self, epoch: int, hosts: Hosts) -> Mapping[Slot, Mapping[str, str]]:
        """Form a new generation.

        Returns:
            The environment of each of its members.
        """

    def has_met(self) -> bool:
        """Whether members of the present generation have begun to look for each other, or need not."""

    def close(self) -> None:
        """Stop serving."""


@dataclass(frozen=True)
class Meeting:
    """What is served to the members of one generation, by which they find each other.

    Attributes:
        environments: The environment of each member.
        reached: Whether a member has begun to connect.
        close: Stops serving.
    """

    environments: Mapping[Slot, Mapping[str, str]]
    reached: Callable[[], bool]
    close: Callable[[], None]


class MeetingBackend(ABC):
    """One worker per slot, and a meeting for each generation alone. See `RestartingBackend`."""

    warm = True
    hands_over = False

    def __init__(self) -> None:
        self._present: Meeting | None = None
        self._next: Meeting | None = None
        self._next_key: tuple[int, Hosts] | None = None

    @abstractmethod
    def open_meeting(self, epoch: int, hosts: Hosts) -> Meeting:
        """Begin to serve a generation. It is served on this machine, never on a harvested node."""

    @abstractmethod
    def defaults(self) -> Mapping[str, str]:
        """Variables that a worker gets unless its job sets them."""

    def is_ready(self) -> bool:
        """Always: nothing has to be loaded first."""
        return True

    def slots(self, hosts: Hosts) -> tuple[Slot, ...]:
        """All slots of all hosts: one worker for each."""
        return tuple(slot for entry in hosts for slot in slots_of(*entry))

    def occupies(self, trained: Hosts, hosts: Iterable[str]) -> frozenset[Slot]:
        """The workers on these hosts: each uses its own host alone."""
        wanted = set(hosts)
        return frozenset(slot for slot in self.slots(trained) if slot.host in wanted)

    def places(self, epoch: int, hosts: Hosts) -> Mapping[Slot, Mapping[str, str]]:
        """The environment of the members of a generation, whose meeting is open from here on."""
        if self._next is None or self._next_key != (epoch, hosts):
            self._close_next()
            self._next, self._next_key = self.open_meeting(epoch, hosts), (epoch, hosts)
        return self._next.environments

    def form(self, epoch: int, hosts: Hosts) -> Mapping[Slot, Mapping[str, str]]:
        """Open a meeting for the new generation alone: nothing of the one before can be in it."""
        environments = self.places(epoch, hosts)
        if self._present is not None:
            self._present.close()  # the workers of the generation before have gone
        self._present, self._next = self._next, None
        return environments

    def has_met(self) -> bool:
        """Whether a member has begun to connect."""
        return self._present is None or self._present.reached()

    def close(self) -> None:
        """Stop serving."""
        self._close_next()
        if self._present is not None:
            self._present.close()
            self._present = None

    def _close_next(self) -> None:
        if self._next is not None:
            self._next.close()
            self._next = None


class CommandBackend:
    """One process on the first host, as for a batch script. See `RestartingBackend`.

    The hosts are in the file that MALLETRAIN_HOSTFILE names, one `NAME slots=N` a line, as `mpirun --hostfile` reads
    it. The GPUs of a member of a fleet are slots of their nodes there. At a change the program gets SIGTERM, to save
    and end all that it has started on other hosts.
    """

    warm = False
    hands_over = False

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        """Keep the file in the job's folder."""
        self._file = folder / HOSTS_FILE
        self._sets_gpus = env.VISIBLE_GPUS in environment

    def defaults(self) -> Mapping[str, str]:
        """No variables: the program is not ours to configure."""
        return {}

    def is_ready(self) -> bool:
        """Always: nothing has to be loaded first."""
        return True

    def slots(self, hosts: Hosts) -> tuple[Slot, ...]:
        """One slot, on the first host: one process starts all others itself."""
        return tuple(Slot(host, 0) for host, _ in hosts[:1])

    def occupies(self, trained: Hosts, hosts: Iterable[str]) -> frozenset[Slot]:
        """The one process, which uses all hosts of its generation."""
        used = {host for host, _ in trained}
        return frozenset(self.slots(trained)) if used & set(hosts) else frozenset()

    def places(self, epoch: int, hosts: Hosts) -> Mapping[Slot, Mapping[str, str]]:
        """Nothing: a program begins with its start."""
        del epoch, hosts
        return {}

    def form(self, epoch: int, hosts: Hosts) -> Mapping[Slot, Mapping[str, str]]:
        """Write the file.

        Raises:
            OSError: it can't be written.
        """
        nodes: Counter[str] = Counter()
        for host, slots in hosts:
            nodes[node_of(host)] += slots
        write_atomically(self._file, "".join(f"{node} slots={slots}\n" for node, slots in nodes.items()))
        environment = {
            env.HOSTFILE: str(self._file),
            env.HOSTS: ",".join(f"{node}:{slots}" for node, slots in nodes.items()),
            env.WORLD_SIZE: str(nodes.total()),
            env.GENERATION: str(epoch),
            **self._gpus([host for host, _ in hosts]),
        }
        return dict.fromkeys(self.slots(hosts), environment)

    def _gpus(self, hosts: list[str]) -> dict[str, str]:
        """What a member of a fleet is told of its GPUs: all of them, and those that the program itself can use."""
        numbers = [
            number for host in hosts if node_of(host) == node_of(hosts[0]) and (number := gpu_number(host)) is not None
        ]
        if not numbers:
            return {}
        inherited = os.environ.get(env.VISIBLE_GPUS, "")
        visible = {env.VISIBLE_GPUS: ",".join(visible_gpu(number, inherited) for number in sorted(numbers))}
        return {env.GPUS: ",".join(hosts), **({} if self._sets_gpus else visible)}

    def has_met(self) -> bool:
        """There is one process only."""
        return True

    def close(self) -> None:
        """Leave the file; it says what ran last."""
