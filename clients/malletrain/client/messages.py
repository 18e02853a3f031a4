"""From records to the contract's messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from malletrain.client.ring import Record
from malletrain.v1 import monitor_pb2


@dataclass(frozen=True, slots=True)
class Identity:
    """Who reports: job, reporting process, worker processes per node."""

    job_id: str
    reporter_id: str
    slots_per_node: int


def message_of(identity: Identity, records: Sequence[Record], dropped: int) -> monitor_pb2.ReportRequest:
    """Records in columns.

    Args:
        identity: Who reports.
        records: Without a gap in their sequences; none: a sign of life.
        dropped: Records lost so far.
    """
    request = monitor_pb2.ReportRequest(
        job_id=identity.job_id,
        reporter_id=identity.reporter_id,
        slots_per_node=identity.slots_per_node,
        dropped_records=dropped,
    )
    if records:
        batch = request.batch
        batch.first_sequence = records[0].sequence
        batch.unix_seconds.extend(record.unix_ns / 1e9 for record in records)
        batch.samples.extend(record.samples for record in records)
        batch.positions.extend(record.position for record in records)
        batch.workers.extend(record.workers for record in records)
    return request
