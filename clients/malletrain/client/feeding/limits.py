"""What a feed may use, and how long it waits for whom."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True, slots=True)
class FeedLimits:
    """Limits of a feed. Those of the training that starts it hold.

    Attributes:
        samples: Most prepared samples that are kept for a group of trainings that have not had them yet. Trainings that
            are further away from each other than this are in different groups.
        memory_mib: Size of the shared memory of a group, in MiB.
        peer_seconds: How long trainings may wait for the feed of another node, in seconds. Then this one prepares the
            samples. Less than their patience.
        groups: Most groups. Each has its own memory and processes.
        stall_seconds: How long a training may keep others waiting, in seconds. Then it prepares samples itself.
        linger_seconds: How long the feed stays when no training is connected, in seconds.
        calm_seconds: How long fewer processes must have sufficed, in seconds, before a feed that chooses their number
            itself lowers it.
    """

    samples: int = 2048
    memory_mib: int = 256
    stall_seconds: float = 1.5
    linger_seconds: float = 10.0
    groups: int = 4
    peer_seconds: float = 1.0
    calm_seconds: float = 60.0

    def __post_init__(self) -> None:
        """Check the limits.

        Raises:
            ValueError: one is out of its range.
        """
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"{each.name}: expected a finite number above 0, got {value!r}")
        if type(self.groups) is not int:
            raise ValueError(f"groups: expected a whole number, got {self.groups!r}")
        if self.memory_bytes < 1:
            raise ValueError(f"memory_mib: expected at least one byte, got {self.memory_mib!r}")

    @property
    def memory_bytes(self) -> int:
        """Size of the shared memory of a group in bytes."""
        return int(self.memory_mib * (1 << 20))

    def as_json(self) -> dict[str, float]:
        """The limits by name."""
        return asdict(self)
