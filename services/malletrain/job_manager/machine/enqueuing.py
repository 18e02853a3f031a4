"""Puts jobs into the queue."""

from __future__ import annotations

from malletrain.job_manager.machine.admitting import place_reason
from malletrain.job_manager.machine.dependencies import Unfinished, waiting_reason
from malletrain.job_manager.machine.jobs import Dependencies, Job, JobSpec
from malletrain.job_manager.machine.transaction import Transaction
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.model.job_state import JobState


def enqueue(
    transaction: Transaction, specs: tuple[JobSpec, ...], owner: str, instance_ids: tuple[str, ...] = ()
) -> None:
    """Put jobs of an owner at the end of the queue. Members of a fleet have been submitted together.

    Of their dependencies, those that have ended hold: whoever submits has looked at how they ended.
    """
    first = transaction.last_number + 1
    waits = _waits(transaction, specs)
    for spec, instance_id in zip(specs, instance_ids or ("",) * len(specs), strict=True):
        transaction.last_number += 1
        waits_for = waits.get(spec.dependencies, ())
        reason = place_reason(transaction.policy.max_parallel, spec.array)
        transaction.add(
            Job(
                number=transaction.last_number,
                spec=spec,
                state=JobState.QUEUED,
                reason_code=JobReason.DEPENDENCY if waits_for else JobReason.SUBMITTED,
                reason=waiting_reason(spec.dependencies, waits_for) if waits_for else reason,
                create_time=transaction.now,
                update_time=transaction.now,
                owner=owner,
                instance_id=instance_id,
                fleet_number=None if spec.fleet is None else first,
                array_number=None if spec.array is None else first,
                waits_for=waits_for,
            )
        )


def _waits(transaction: Transaction, specs: tuple[JobSpec, ...]) -> dict[Dependencies, tuple[str, ...]]:
    """Which of their dependencies have not ended: the jobs of a submission often have the same."""
    found = {spec.dependencies for spec in specs if spec.dependencies}
    unfinished = Unfinished(transaction.active() if found else ())
    return {entry: tuple(name for name in entry.names if name in unfinished) for entry in found}
