"""What others see of a supervisor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from malletrain.common.version import VERSION
from malletrain.supervisor.workers.slot import Slot
from malletrain.v1 import supervisor_pb2

State = supervisor_pb2.SupervisorState
Outcome: TypeAlias = "supervisor_pb2.SupervisorOutcome.ValueType"

UNDECIDED = supervisor_pb2.SUPERVISOR_OUTCOME_UNSPECIFIED


class CommandProgress(Protocol):
    """How far a job is on its way to what is commanded."""

    @property
    def sequence(self) -> int:
        """Sequence of the newest command."""

    @property
    def commanded(self) -> Mapping[str, int]:
        """Hosts and slots that the job shall use."""

    @property
    def winding_down(self) -> bool:
        """Whether the training seems to be over though rank 0 has not ended yet."""

    @property
    def confirmed_sequence(self) -> int:
        """Sequence of the newest command that has been carried out."""

    @property
    def fulfilled(self) -> bool:
        """Whether it trains exactly on what is commanded."""

    @property
    def confirmed_hosts(self) -> tuple[str, ...]:
        """Hosts that are commanded and on which it trains."""


@dataclass(frozen=True)
class Seen:
    """What a supervisor knows of its job, from which its state for JobManager is made.

    Attributes:
        progress: How far it is.
        confirmed_hosts: Hosts that count as confirmed.
        pids: Its workers' process ids.
        failures: How many workers have failed by themselves, by host.
        kept: Whether it has no workers, and its supervisor waits for hosts.
        overtaken: Commands up to this sequence came before a stop, and are not carried out any more.
    """

    progress: CommandProgress
    confirmed_hosts: tuple[str, ...]
    pids: tuple[tuple[Slot, int], ...]
    failures: Mapping[str, int]
    kept: bool = False
    overtaken: int = 0


def view(job_id: str, seen: Seen, stopping: bool, outcome: Outcome, message: str) -> State:
    """The state as a message.

    Args:
        job_id: The job.
        seen: What there is of it.
        stopping: Whether the workers are being ended on command.
        outcome: How they ended, once they have.
        message: What went wrong, or how the training ended.
    """
    progress = seen.progress
    return State(
        job_id=job_id,
        phase=_phase(seen, stopping, outcome),
        commanded_sequence=max(progress.sequence, seen.overtaken),
        commanded_hosts=[supervisor_pb2.Host(name=name, slots=n) for name, n in progress.commanded.items()],
        confirmed_sequence=progress.confirmed_sequence,
        confirmed_hosts=seen.confirmed_hosts,
        workers=[
            supervisor_pb2.WorkerProcess(host=slot.host, local_rank=slot.local_rank, pid=pid) for slot, pid in seen.pids
        ],
        outcome=outcome,
        message=message,
        failures=[
            supervisor_pb2.HostFailures(host=host, failures=count) for host, count in sorted(seen.failures.items())
        ],
        version=VERSION,
    )


def _phase(seen: Seen, stopping: bool, outcome: Outcome) -> supervisor_pb2.SupervisorPhase.ValueType:
    if outcome != UNDECIDED:
        return supervisor_pb2.SUPERVISOR_PHASE_ENDED
    if stopping:
        return supervisor_pb2.SUPERVISOR_PHASE_STOPPING
    if seen.kept:
        return supervisor_pb2.SUPERVISOR_PHASE_KEPT
    if seen.progress.confirmed_sequence:
        return supervisor_pb2.SUPERVISOR_PHASE_RUNNING
    return supervisor_pb2.SUPERVISOR_PHASE_STARTING
