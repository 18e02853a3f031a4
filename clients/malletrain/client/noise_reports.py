"""Measures the gradient noise scale of an elastic training, and logs it: plans learn from it what batches teach."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from malletrain.client import current_job, log_metrics
from malletrain.client.gradient_noise import EVERY, NoiseMeter, PassPlan
from malletrain.client.sampling import WorkerShare
from malletrain.common import environment as env

NOISE_SCALE, BATCH_PER_NODE = "gradient_noise_scale", "batch_per_node"
"""Names of the training metrics; Monitor knows both (`malletrain.model.goodput`)."""
_LOG_SECONDS = 1.0


def measured_every(environ: Mapping[str, str], by_script: bool) -> int:
    """Of how many steps one is measured, by the job's environment, or else by the script; 0: none.

    Raises:
        ValueError: the variable is not a whole number.
    """
    told = environ.get(env.GRADIENT_NOISE, "")
    if not told:
        return EVERY if by_script else 0
    if not told.isdecimal():
        raise ValueError(f"{env.GRADIENT_NOISE}: expected a whole number, got {told!r}")
    return EVERY if told == "1" else int(told)


class NoiseReports:
    """The gradient noise scale of one training."""

    def __init__(self, noise: NoiseMeter, *, batch_grows: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """Log nothing yet.

        Args:
            noise: What measures it.
            batch_grows: Whether the batch grows with the workers.
            clock: Seconds of a monotonic clock.
        """
        self.noise = noise
        self._batch_grows = batch_grows
        self._clock = clock
        self._logged = -_LOG_SECONDS

    def begin(self, share: WorkerShare) -> None:
        """Prepare for the next step of a worker with this share."""
        partition = share.partition
        first = partition.micro_batches(share.rank)[0]
        self.noise.begin(PassPlan(first, partition.global_batch, partition.micro_steps, partition.weight(first)))

    def end(self, batch: int, workers: int) -> None:
        """Take the gradients of a step.

        Args:
            batch: Its samples, over all workers.
            workers: Number of workers.

        Raises:
            RuntimeError: another worker is lost.
        """
        if not self.noise.end() or self._clock() - self._logged < _LOG_SECONDS:
            return
        if (noise_scale := self.noise.noise_scale) is not None:
            self._logged = self._clock()
            job = current_job()
            slots = job.slots_per_node if job is not None else 1
            per_node = batch * slots / workers if self._batch_grows else 0.0
            log_metrics({BATCH_PER_NODE: per_node, NOISE_SCALE: noise_scale})
