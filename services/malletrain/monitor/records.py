"""What trainers report, and what lies between two reports."""

from __future__ import annotations

from dataclasses import dataclass

NO_POSITION = -1
"""Position of a record whose trainer does not say."""


@dataclass(frozen=True, slots=True)
class Record:
    """One global batch of a job.

    Attributes:
        unix_seconds: When the batch ended, in seconds since the epoch.
        samples: Samples of the batch, all workers together.
        position: The job's sample counter after the batch, or NO_POSITION.
        workers: Worker processes of the job.
    """

    unix_seconds: float
    samples: int
    position: int
    workers: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Successive records of one reporter.

    Attributes:
        job_id: The job.
        reporter_id: The reporting process; sequences count within it.
        first_sequence: Sequence of the first record, from 1; the others follow without gaps.
        records: The records, oldest first; may be empty.
        slots_per_node: Worker processes per node.
        dropped_records: Records the reporter has dropped so far.
    """

    job_id: str
    reporter_id: str
    first_sequence: int
    records: tuple[Record, ...]
    slots_per_node: int
    dropped_records: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """What lies between two successive records of a job.

    Attributes:
        unix_seconds: When it ended.
        seconds: How long it took; negative where the reporters' clocks disagree.
        samples: Samples of the record at its end.
        from_nodes: Scale at its begin, in nodes.
        to_nodes: Scale at its end, in nodes.
        contiguous: Both records are of one reporter and none is missing between them.
        new_reporter: The record at its end is the first of a new reporter.
        samples_lost: Samples that were rolled back in it.
    """

    unix_seconds: float
    seconds: float
    samples: int
    from_nodes: int
    to_nodes: int
    contiguous: bool
    new_reporter: bool
    samples_lost: int

    @property
    def steady(self) -> bool:
        """An ordinary training step: no rescale, no rollback, nothing missing."""
        return self.contiguous and self.from_nodes == self.to_nodes and self.samples_lost == 0 and self.seconds >= 0
