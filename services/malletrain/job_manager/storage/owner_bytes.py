"""How much each owner's jobs take in the database, those that have ended as well. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from malletrain.runtime.errors import LimitExceededError
from malletrain.v1 import resources_pb2

MIB = 1 << 20
_JOB_BYTES = 2048
"""Of a row besides what was submitted, and of the rows of the journal that every job has."""
_POINT_BYTES = 48
_SCALE_BYTES = 6
"""In the JSON of a row, where a message has two or three."""
_KEPT_SHARE = 0.75
"""Above this share of the quota an owner's oldest ended jobs go, so that what is submitted next finds room."""


def stored_bytes(specs: Iterable[resources_pb2.JobSpec]) -> int:
    """About how many bytes jobs will take."""
    return sum(
        _JOB_BYTES + spec.ByteSize() + _POINT_BYTES * len(spec.curve) + _SCALE_BYTES * len(spec.permitted_nodes)
        for spec in specs
    )


class OwnerBytes:
    """Bytes by owner. Counted by what is submitted, and corrected by what the database says."""

    def __init__(self, stored: Mapping[str, tuple[int, int]], quota_mib: int) -> None:
        """Count from what is stored.

        Args:
            stored: Bytes and number of the jobs of each owner.
            quota_mib: What an owner may have, in MiB.
        """
        self._quota = quota_mib * MIB
        self._bytes: dict[str, int] = {}
        for owner, (size, jobs) in stored.items():
            self.correct(owner, size, jobs)

    def add(self, owner: str, added: int) -> None:
        """Count what an owner submits.

        Raises:
            LimitExceededError: it would be too much; it is not counted.
        """
        present = self._bytes.get(owner, 0)
        if present + added > self._quota:
            raise LimitExceededError(
                f"the jobs of {owner}, those that have ended as well, take {present / MIB:.1f} MiB and these "
                f"{added / MIB:.1f} more: at most {self._quota / MIB:g} (job_manager.max_mib_per_owner); none was "
                "submitted. The oldest that have ended are being removed: try again in a while, cancel jobs, or pass "
                "large values in a file rather than in the environment"
            )
        self._bytes[owner] = present + added

    def correct(self, owner: str, size: int, jobs: int) -> None:
        """Take what the database says: bytes and number of an owner's jobs."""
        self._bytes[owner] = size + jobs * _JOB_BYTES // 2

    def is_above(self, owner: str) -> bool:
        """Whether an owner's oldest ended jobs are to go."""
        return self._bytes.get(owner, 0) > self._quota * _KEPT_SHARE

    def above(self) -> list[str]:
        """Owners whose oldest ended jobs are to go."""
        return [owner for owner in self._bytes if self.is_above(owner)]
