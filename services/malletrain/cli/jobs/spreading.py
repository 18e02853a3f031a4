"""What a job has been measured to lose where its nodes are far from each other."""

from __future__ import annotations

from typing import Any

from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs
from malletrain.model.spreading import SpanRate, SpreadLoss, spread_losses
from malletrain.v1 import monitor_pb2


def losses_of(stubs: ServiceStubs, job_id: str) -> tuple[SpreadLoss, ...]:
    """What spreading costs a job; nothing where that is not measured.

    Raises:
        grpc.RpcError: Monitor does not answer.
    """
    request = monitor_pb2.ListScalingRecordsRequest(job_ids=[job_id])
    records = stubs.monitor.ListScalingRecords(request, timeout=DEADLINE_SECONDS).records
    return spread_losses(
        SpanRate(one.point.nodes, one.shared_levels, one.point.rate, one.point.relative_error)
        for record in records
        for one in record.span_points
    )


def loss_dict(loss: SpreadLoss) -> dict[str, Any]:
    """A loss as `--json` prints it."""
    return {
        "sharedLevels": loss.shared_levels,
        "nearLevels": loss.near_levels,
        "loss": loss.loss,
        "error": loss.error,
        "nodes": list(loss.nodes),
    }
