"""How long what a job does may take, as its owner says, and what that means where the owner says nothing."""

from __future__ import annotations

from dataclasses import dataclass

PHASE_SECONDS = 1800.0
"""Half an hour: silence alone is never taken for a fault before."""
LEAVE_GRACE_SECONDS = 60.0
"""A worker that takes the signal saves and ends within seconds; one that does not would keep the others waiting."""
COLLECTIVE_SECONDS = 300.0
"""Workers that are lost are noticed without it. torch's own limits are 10 minutes with NCCL and 30 with Gloo."""
MAX_PHASE_SECONDS = 30 * 86_400.0


@dataclass(frozen=True)
class JobLimits:
    """Limits of one job in seconds; 0: the default.

    Attributes:
        start_seconds: From the start of its processes until they train at the commanded scale; also until the first
            batch, for processes that do nothing.
        step_seconds: From one batch to the next, phases left out.
        evaluation_seconds: An evaluation.
        save_seconds: Saving a checkpoint.
        release_grace_seconds: How long workers on a node that is released get to end by themselves.
        leave_grace_seconds: How long workers get to save and end when all are started again at another scale.
    """

    start_seconds: float = 0.0
    step_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    save_seconds: float = 0.0
    release_grace_seconds: float = 0.0
    leave_grace_seconds: float = 0.0

    @property
    def start(self) -> float:
        """Longest start in seconds."""
        return self.start_seconds or PHASE_SECONDS

    @property
    def step(self) -> float:
        """Longest step in seconds."""
        return self.step_seconds or PHASE_SECONDS

    @property
    def evaluation(self) -> float:
        """Longest evaluation in seconds."""
        return self.evaluation_seconds or PHASE_SECONDS

    @property
    def save(self) -> float:
        """Longest save in seconds."""
        return self.save_seconds or PHASE_SECONDS

    @property
    def leave_grace(self) -> float:
        """Grace at a change of scale in seconds."""
        return self.leave_grace_seconds or LEAVE_GRACE_SECONDS

    @property
    def collective(self) -> float:
        """How long workers wait for each other in seconds: as long as the owner lets one of them be at something."""
        return max(COLLECTIVE_SECONDS, self.step_seconds, self.evaluation_seconds, self.save_seconds)


DEFAULT_LIMITS = JobLimits()
